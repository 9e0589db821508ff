//! `seriatim migrate`.

use crate::support::{Cli, DONE, ERROR, NOTHING, REFUSED};

#[tokio::test]
async fn migrate_checks_prints_and_migrates() {
    let cli = Cli::new().await;
    cli.ends(DONE, &["migrate", "--check"]).await;
    let other = ["--schema", "bill'ing\" x"];
    let migrate = "seriatim --schema 'bill'\\''ing\" x' migrate`";
    let missing = cli.ends(REFUSED, &[&other[..], &["migrate", "--check"]].concat()).await;
    assert!(missing.err.contains(migrate), "{}", missing.err);
    let missing = cli.ends(ERROR, &[&other[..], &["queues"]].concat()).await;
    assert!(missing.err.contains(migrate), "{}", missing.err);

    // The script makes what the command would make: afterwards there is nothing to do.
    let script = cli.ends(DONE, &[&other[..], &["migrate", "--sql"]].concat()).await.out;
    cli.ends(REFUSED, &[&other[..], &["migrate", "--check"]].concat()).await;
    let script = sqlx::AssertSqlSafe(script);
    sqlx::raw_sql(script).execute(cli.database.pool()).await.unwrap();
    cli.ends(DONE, &[&other[..], &["migrate", "--check"]].concat()).await;
    let nothing = cli.ends(DONE, &[&other[..], &["migrate", "--sql"]].concat()).await;
    assert!(nothing.out.starts_with("-- "), "{}", nothing.out);

    let third = ["--schema", "third"];
    cli.ends(DONE, &[&third[..], &["migrate", "--dry-run"]].concat()).await;
    let migrated = [&third[..], &["migrate"]].concat();
    assert_eq!(cli.json(&migrated).await[0]["state"], "migrated");
    assert_eq!(cli.json(&migrated).await[0]["state"], "up_to_date");
    cli.ends(NOTHING, &[&third[..], &["queues"]].concat()).await;
    cli.remove().await;
}
