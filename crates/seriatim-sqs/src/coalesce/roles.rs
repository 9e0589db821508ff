//! The coalescers of each role: roles do not share statements.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use sqlx::PgPool;

use crate::auth::Caller;
use crate::coalesce::Coalescer;
use crate::coalesce::deletes::Deletes;
use crate::coalesce::receives::{Receives, Receiving};
use crate::coalesce::sends::Sends;
use crate::database::Database;
use crate::waiting::Waiting;

/// The coalescers of a role.
pub(crate) struct OfRole {
    pub(crate) sends: Arc<Coalescer<Sends>>,
    pub(crate) deletes: Arc<Coalescer<Deletes>>,
    database: Arc<Database>,
    waiting: Arc<Waiting>,
    pool: PgPool,
    /// One for requests that want the same, as long as there are some.
    receives: Mutex<HashMap<Receiving, Weak<Coalescer<Receives>>>>,
}

impl OfRole {
    fn new(database: &Arc<Database>, waiting: &Arc<Waiting>, pool: PgPool) -> Self {
        let (client, database) = (database.client.clone(), Arc::clone(database));
        Self {
            sends: Coalescer::new(Sends::new(&database, &pool)),
            deletes: Coalescer::new(Deletes { client, pool: pool.clone() }),
            database,
            waiting: Arc::clone(waiting),
            pool,
            receives: Mutex::default(),
        }
    }

    pub(crate) fn receives(&self, receiving: &Receiving) -> Arc<Coalescer<Receives>> {
        let mut receives = self.receives.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = receives.get(receiving).and_then(Weak::upgrade) {
            return known;
        }
        receives.retain(|_, of| of.strong_count() > 0);
        let new = Coalescer::new(Receives {
            database: Arc::clone(&self.database),
            waiting: Arc::clone(&self.waiting),
            pool: self.pool.clone(),
            receiving: receiving.clone(),
        });
        receives.insert(receiving.clone(), Arc::downgrade(&new));
        new
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
        let mut of_roles = self.of_roles.lock().unwrap_or_else(PoisonError::into_inner);
        let of_role = of_roles.entry(caller.role.clone()).or_insert_with(|| {
            let pool = self.database.pool_of(caller);
            Arc::new(OfRole::new(&self.database, &self.waiting, pool))
        });
        Arc::clone(of_role)
    }
}
