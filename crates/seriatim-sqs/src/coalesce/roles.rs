//! The coalescers of each role: roles do not share statements.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use sqlx::PgPool;

use crate::caller::Caller;
use crate::coalesce::receipts::{Receipts, Settling};
use crate::coalesce::receives::{Receives, Receiving};
use crate::coalesce::sends::Sends;
use crate::coalesce::{Coalescer, Statement};
use crate::database::Database;
use crate::patience::Patience;
use crate::waiting::Waiting;

/// Coalescers of requests that want the same, each as long as there are some.
struct Alike<K, S: Statement>(Mutex<HashMap<K, Weak<Coalescer<S>>>>);

impl<K: Hash + Eq + Clone, S: Statement> Alike<K, S> {
    fn new() -> Self {
        Self(Mutex::default())
    }

    fn of(
        &self,
        wanted: &K,
        patience: &Arc<Patience>,
        statement: impl FnOnce() -> S,
    ) -> Arc<Coalescer<S>> {
        let mut alike = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = alike.get(wanted).and_then(Weak::upgrade) {
            return known;
        }
        alike.retain(|_, of| of.strong_count() > 0);
        let new = Coalescer::new(statement(), patience);
        alike.insert(wanted.clone(), Arc::downgrade(&new));
        new
    }
}

/// The coalescers of a role.
pub(crate) struct OfRole {
    pub(crate) sends: Arc<Coalescer<Sends>>,
    pub(crate) patience: Arc<Patience>,
    receives: Alike<Receiving, Receives>,
    receipts: Alike<Settling, Receipts>,
    database: Arc<Database>,
    waiting: Arc<Waiting>,
    pool: PgPool,
}

impl OfRole {
    fn new(database: &Arc<Database>, waiting: &Arc<Waiting>, pool: PgPool) -> Self {
        let patience = Arc::new(Patience::of(&pool));
        Self {
            sends: Coalescer::new(Sends::new(database, &pool), &patience),
            patience,
            receives: Alike::new(),
            receipts: Alike::new(),
            database: Arc::clone(database),
            waiting: Arc::clone(waiting),
            pool,
        }
    }

    pub(crate) fn receives(&self, receiving: &Receiving) -> Arc<Coalescer<Receives>> {
        self.receives.of(receiving, &self.patience, || Receives {
            database: Arc::clone(&self.database),
            waiting: Arc::clone(&self.waiting),
            pool: self.pool.clone(),
            receiving: receiving.clone(),
        })
    }

    pub(crate) fn receipts(&self, settling: Settling) -> Arc<Coalescer<Receipts>> {
        let client = self.database.client.clone();
        let statement = || Receipts { client, pool: self.pool.clone(), settling };
        self.receipts.of(&settling, &self.patience, statement)
    }
}

/// The coalescers of all roles.
pub(crate) struct Coalescers {
    database: Arc<Database>,
    waiting: Arc<Waiting>,
    of_roles: Mutex<HashMap<Option<String>, Arc<OfRole>>>,
}

impl Coalescers {
    pub(crate) fn new(database: &Arc<Database>, waiting: &Arc<Waiting>) -> Self {
        let (database, waiting) = (Arc::clone(database), Arc::clone(waiting));
        Self { database, waiting, of_roles: Mutex::default() }
    }

    pub(crate) fn of(&self, caller: &Caller) -> Arc<OfRole> {
        let pool = self.database.pool_of(caller);
        let mut of_roles = self.of_roles.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(of_role) = of_roles.get(&caller.role)
            && Arc::ptr_eq(&of_role.pool.connect_options(), &pool.connect_options())
        {
            return Arc::clone(of_role);
        }
        let of_role = Arc::new(OfRole::new(&self.database, &self.waiting, pool));
        of_roles.insert(caller.role.clone(), Arc::clone(&of_role));
        of_role
    }
}
