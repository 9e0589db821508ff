//! The store: the statements for one schema.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Postgres};

use crate::store::names::Names;
use crate::store::statement::Statement;

/// The schema that is used unless another is named.
const DEFAULT_SCHEMA: &str = "seriatim";

static DEFAULT: LazyLock<Arc<Store>> = LazyLock::new(|| Arc::new(Store::new(DEFAULT_SCHEMA)));

/// The statements for one schema, as the connections of one pool can take them.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) names: Names,
    /// A transaction pooler that keeps no track of names hands a session, with the names in it, to
    /// the next client. A statement without a name is gone before its transaction ends.
    nameless: AtomicBool,
    /// By the statement's address, and by whether the text is sent without a name.
    compiled: RwLock<HashMap<(usize, bool), Arc<str>>>,
}

impl Store {
    pub(crate) fn new(schema: &str) -> Self {
        let (nameless, compiled) = (AtomicBool::new(false), RwLock::default());
        Self { names: Names::new(schema), nameless, compiled }
    }

    pub(crate) fn default_schema() -> Arc<Self> {
        Arc::clone(&DEFAULT)
    }

    /// Returns a store of its own for the same schema: what is known of one pool's connections is
    /// not true of another's.
    pub(crate) fn for_another_pool(&self, names: bool) -> Self {
        let other = Self::new(self.names.schema());
        if !names {
            other.send_no_names();
        }
        other
    }

    /// From here on its statements have no names: for connections through a transaction pooler.
    pub(crate) fn send_no_names(&self) {
        self.nameless.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_nameless(&self) -> bool {
        self.nameless.load(Ordering::Relaxed)
    }

    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    /// Returns the statement, ready for its arguments.
    pub(crate) fn query(
        &self,
        statement: &'static Statement,
    ) -> Query<'static, Postgres, PgArguments> {
        let nameless = self.is_nameless();
        let text = self.compiled(statement, nameless);
        sqlx::query(AssertSqlSafe(text)).persistent(!nameless)
    }

    fn compiled(&self, statement: &'static Statement, nameless: bool) -> Arc<str> {
        let key = (std::ptr::from_ref(statement).addr(), nameless);
        let compiled = self.compiled.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = compiled.get(&key) {
            return Arc::clone(text);
        }
        drop(compiled);
        let mut text = statement.compile(&self.names);
        if nameless {
            // Another text: the driver uses the name that a connection has for a text, whatever it
            // is told.
            text.push(' ');
        }
        let mut compiled = self.compiled.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(compiled.entry(key).or_insert_with(|| text.into()))
    }
}
