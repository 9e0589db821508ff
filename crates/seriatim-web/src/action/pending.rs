//! A change under way: who makes it and why, and its transaction.

use seriatim::admin::Operator;
use sqlx::{Postgres, Transaction};

use crate::action::effect::Effect;
use crate::app::App;
use crate::config::Identity;
use crate::error::WebError;

const REASON_LIMIT: usize = 1_000;

/// A change under way.
pub(crate) struct Pending<'a> {
    pub(crate) app: &'a App,
    /// It records the actor and the reason.
    pub(crate) operator: Operator,
    pub(crate) reason: &'a str,
    /// It only shows the effect.
    pub(crate) dry_run: bool,
}

impl<'a> Pending<'a> {
    /// Fails without a reason, but for a dry run, and with one that cannot be recorded.
    pub(crate) fn new(
        app: &'a App,
        identity: &Identity,
        reason: &'a str,
        dry_run: bool,
    ) -> Result<Self, WebError> {
        let reason = reason.trim();
        if !dry_run && reason.is_empty() {
            return Err(WebError::BadRequest(String::from("A change needs a reason.")));
        }
        if reason.chars().count() > REASON_LIMIT || reason.contains('\0') {
            return Err(WebError::BadRequest(format!(
                "A reason has at most {REASON_LIMIT} characters, and no NUL."
            )));
        }
        let operator = app.client.operator(&identity.name, reason);
        Ok(Self { app, operator, reason, dry_run })
    }

    pub(crate) async fn begin(&self) -> Result<Transaction<'static, Postgres>, WebError> {
        Ok(self.app.writes().begin().await?)
    }

    /// Commits; a dry run is rolled back.
    pub(crate) async fn end(
        &self,
        tx: Transaction<'static, Postgres>,
        effect: Effect,
    ) -> Result<Effect, WebError> {
        if self.dry_run {
            tx.rollback().await?;
            return Ok(Effect { undo: None, ..effect });
        }
        tx.commit().await?;
        Ok(effect)
    }

    /// Returns the reason of the request that takes this change back.
    pub(crate) fn taken_back(&self) -> String {
        format!("taken back: {}", self.reason)
    }
}
