//! Commands that read on a standby, and the page there.

#[allow(dead_code)] // The tests of the library use the rest.
#[path = "../../../../tests/all/support/standby.rs"]
mod standby;

use std::process::Stdio;
use std::time::{Duration, Instant};

use seriatim::NewJob;
use sqlx::PgPool;
use tokio::process::Command;
use tokio::time::sleep;

use crate::support::{DONE, PATIENCE, Served, get, ran};
use standby::Pair;

async fn eventually<T>(pool: &PgPool, query: &'static str, expected: T)
where
    T: PartialEq
        + Send
        + Unpin
        + for<'r> sqlx::Decode<'r, sqlx::Postgres>
        + sqlx::Type<sqlx::Postgres>,
{
    let deadline = Instant::now() + PATIENCE;
    while sqlx::query_scalar::<_, T>(query).fetch_one(pool).await.unwrap() != expected {
        assert!(Instant::now() < deadline, "waited in vain: {query}");
        // Replication has no event here.
        sleep(Duration::from_millis(20)).await;
    }
}

fn seriatim(pair: &Pair) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_seriatim"));
    command.env("SERIATIM_READ_FROM", pair.standby_url());
    command.env("DATABASE_URL", pair.database.url());
    command.stdin(Stdio::null());
    command
}

#[tokio::test]
async fn commands_and_the_page_read_on_a_standby_and_say_how_old_it_is() {
    let Some(pair) = Pair::new().await else { return };
    let job = NewJob::new("q", &1).group("g");
    let id = seriatim::enqueue(pair.old(), job).await.unwrap().id().to_string();
    let standby = PgPool::connect(&pair.standby_url()).await.unwrap();
    eventually(&standby, "select count(*) from seriatim.job", 1_i64).await;
    let ends =
        async |arguments: &[&str]| ran(seriatim(&pair).args(arguments).output().await.unwrap());
    for arguments in [
        &["queues"][..],
        &["groups", "q"],
        &["lane", "q", "g"],
        &["explain", &id],
        &["job", "show", &id],
        &["job", "list", "q"],
        &["metrics"],
        &["configure", "q"],
    ] {
        let read = ends(arguments).await;
        assert_eq!(read.code, DONE, "{arguments:?}: {}", read.err);
        assert!(read.err.contains("read from a standby, as of "), "{}", read.err);
    }
    let explained = ends(&["explain", &id]).await;
    assert!(explained.out.contains("This is read from a standby, as of "), "{}", explained.out);
    // A change goes to the primary.
    let paused = ends(&["pause", "q", "g", "--reason", "a test"]).await;
    assert_eq!((paused.code, paused.err.contains("standby")), (DONE, false), "{}", paused.err);
    let settings = "select count(*) from seriatim.group_setting where paused_at is not null";
    eventually(&standby, settings, 1_i64).await;
    // The primary is not asked for what is read, and is not guessed.
    let alone = async |arguments: &[&str]| {
        let mut command = seriatim(&pair);
        ran(command.env_remove("DATABASE_URL").args(arguments).output().await.unwrap())
    };
    assert_eq!(alone(&["queues"]).await.code, DONE);
    assert_ne!(alone(&["pause", "q", "g", "--reason", "a test"]).await.code, DONE);

    for (has_primary, shows_a_button) in [(true, true), (false, false)] {
        let mut serve = seriatim(&pair);
        if !has_primary {
            serve.env_remove("DATABASE_URL");
        }
        serve.args(["serve", "--listen", "127.0.0.1:0", "--auth", "none", "--json"]);
        let serve = Served::start(&mut serve).await;
        let url = serve.text("url");
        let page = get(&format!("{url}lane?queue=q&group=g"), "").await;
        assert!(page.contains("Read from a standby, as of "), "{page}");
        assert_eq!(page.contains("data-action"), shows_a_button, "{page}");
    }
    standby.close().await;
}
