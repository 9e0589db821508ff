//! `seriatim sqs key`: who may sign requests.

use serde_json::json;
use seriatim_sqs::{KeyError, Keys};

use crate::args::SqsKey;
use crate::failure::Failure;
use crate::output::{json_line, line, remark};
use crate::session::Session;

pub(crate) async fn run(session: &Session, command: SqsKey) -> Result<(), Failure> {
    if session.dry_run && !matches!(command, SqsKey::List) {
        let message = "a key is made or removed at once: leave --dry-run out";
        return Err(Failure::Usage(message.to_owned()));
    }
    let keys = Keys::new(&session.pool, &session.client);
    match command {
        SqsKey::Add { role } => {
            let key = keys.add(role.as_deref()).await.map_err(refusal)?;
            if let Some(role) = role {
                let needed =
                    format!("the role of `serve sqs` must be a member of {role}: grant it");
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
                        "access_key": key.access_key, "role": key.role, "created_at": key.created_at,
                    }))?;
                } else {
                    let role = key.role.as_deref().unwrap_or("the server's role");
                    let made = key.created_at.format("%Y-%m-%d %H:%M:%S UTC");
                    line(&format!("{}  {role}, since {made}", key.access_key))?;
                }
            }
            Ok(())
        }
        SqsKey::Remove { access_key } => {
            if keys.remove(&access_key).await.map_err(refusal)? {
                line("The key is removed: what is signed with it is refused.")
            } else {
                Err(Failure::NothingMatched(format!("there is no key {access_key}")))
            }
        }
    }
}

fn refusal(error: KeyError) -> Failure {
    match error {
        KeyError::Database(error) => error.into(),
        other => Failure::Refused(other.to_string()),
    }
}
