//! `seriatim sqs key`: who may sign requests.

use serde_json::json;
use seriatim_sqs::{Key, KeyError, Keys};

use crate::args::SqsKey;
use crate::failure::Failure;
use crate::output::text::{clock, visible};
use crate::output::{json_line, line, remark};
use crate::session::Session;

pub(crate) async fn run(session: &Session, command: SqsKey) -> Result<(), Failure> {
    if session.dry_run && !matches!(command, SqsKey::List) {
        let message = "a key is changed at once: leave --dry-run out";
        return Err(Failure::Usage(message.to_owned()));
    }
    let keys = Keys::new(&session.pool, &session.client);
    let keys = keys.acting(&session.actor, session.reason.as_deref());
    match command {
        SqsKey::Add { role, queues, key } => {
            keys.store(&key, role.as_deref(), queues.as_deref()).await.map_err(refusal)?;
            if let Some(role) = role {
                let needed = format!(
                    "`serve sqs` works as {role}: its own role must be a superuser, or a member of {role}"
                );
                remark(session.form, &needed);
            }
            if session.json() {
                json_line(&json!({"access_key": key.access_key, "secret": key.secret}))
            } else {
                line(&format!("export AWS_ACCESS_KEY_ID={}", key.access_key))?;
                line(&format!("export AWS_SECRET_ACCESS_KEY={}", key.secret))
            }
        }
        SqsKey::List => {
            for key in keys.list().await.map_err(refusal)? {
                if session.json() {
                    json_line(&json!({
                        "access_key": key.access_key, "role": key.role, "queues": key.queues,
                        "created_at": key.created_at, "disabled_at": key.disabled_at,
                    }))?;
                } else {
                    line(&visible(&shown(&key)))?;
                }
            }
            Ok(())
        }
        SqsKey::Remove { access_key } => {
            let sentence = "The key is removed: what is signed with it is refused.";
            tell(keys.remove(&access_key).await, sentence, &format!("there is no key {access_key}"))
        }
        SqsKey::Disable { access_key } => {
            let sentence = "The key is disabled: what is signed with it is refused.";
            let none = format!("there is no key {access_key}, or it is disabled already");
            tell(keys.disable(&access_key).await, sentence, &none)
        }
        SqsKey::Enable { access_key } => {
            let sentence = "The key is enabled: it counts again.";
            let none = format!("there is no key {access_key} that is disabled");
            tell(keys.enable(&access_key).await, sentence, &none)
        }
    }
}

/// Returns a key in words.
fn shown(key: &Key) -> String {
    let role = key.role.as_deref().unwrap_or("the server's role");
    let queues = key.queues.as_ref();
    let queues = queues.map(|queues| format!(", for the queues {}", queues.join(",")));
    let disabled = key.disabled_at.map(|since| format!(", disabled since {}", clock(since)));
    let (queues, disabled) = (queues.unwrap_or_default(), disabled.unwrap_or_default());
    format!("{}  {role}, since {}{queues}{disabled}", key.access_key, clock(key.created_at))
}

/// Tells what a change of a key has done.
fn tell(changed: Result<bool, KeyError>, sentence: &str, none: &str) -> Result<(), Failure> {
    if changed.map_err(refusal)? {
        return line(sentence);
    }
    Err(Failure::NothingMatched(none.to_owned()))
}

fn refusal(error: KeyError) -> Failure {
    match error {
        KeyError::Database(error) => error.into(),
        KeyError::Queues { .. } => Failure::Usage(error.to_string()),
        other => Failure::Refused(other.to_string()),
    }
}
