//! `build()` says everything that is wrong with a processor's settings, at once.

use std::time::Duration;

use serde_json::json;
use seriatim::observe::Watchdog;
use seriatim::{
    BuildMistake, Client, Hold, NameError, OutOfAttempts, Processor, ProcessorBuilder,
    QueueOptions, Retention, RetryPolicy,
};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

use crate::support::logged::Logged;
use crate::support::{FnHandler, handler};

/// No connection is made by `build()`.
fn pool(connections: u32) -> PgPool {
    PgPoolOptions::new()
        .max_connections(connections)
        .connect_lazy("postgres://nobody@127.0.0.1:1/nowhere")
        .unwrap()
}

fn nothing() -> FnHandler {
    handler(async |_, _| Ok(json!(null)))
}

fn mistakes(builder: ProcessorBuilder) -> Vec<BuildMistake> {
    match builder.build() {
        Ok(built) => panic!("nothing was wrong with {built:?}"),
        Err(error) => {
            let text = error.to_string();
            assert_eq!(format!("{error:?}"), text, "as main prints it");
            for mistake in error.mistakes() {
                assert!(text.contains(&mistake.to_string()), "{mistake} in {text}");
            }
            error.mistakes().to_vec()
        }
    }
}

/// The settings that are out of range, each with what was given.
fn out_of_range(mistakes: &[BuildMistake]) -> Vec<(&str, &'static str, &str)> {
    mistakes
        .iter()
        .map(|mistake| match mistake {
            BuildMistake::OutOfRange { queue, setting, value, .. } => {
                (queue.as_str(), *setting, value.as_str())
            }
            other => panic!("{other}"),
        })
        .collect()
}

#[tokio::test]
async fn without_a_queue_there_is_nothing_to_do() {
    let found = mistakes(Processor::builder(pool(1)));
    assert_eq!(found, [BuildMistake::NoQueue]);
}

#[tokio::test]
async fn a_queue_is_registered_once() {
    let queue = || QueueOptions::new("q").concurrency(1);
    let builder = Processor::builder(pool(3))
        .queue(queue(), nothing())
        .queue(QueueOptions::new("other").concurrency(1), nothing())
        .queue(queue(), nothing());
    let twice = BuildMistake::Twice { queue: "q".into() };
    assert_eq!(mistakes(builder), [twice]);
}

#[tokio::test]
async fn a_pool_too_small_is_refused_with_the_numbers() {
    let builder = |connections| {
        Processor::builder(pool(connections))
            .queue(QueueOptions::new("mails").concurrency(3), nothing())
            .queue(QueueOptions::new("bills").concurrency(4), nothing())
    };
    assert!(builder(7).build().is_ok());
    let found = mistakes(builder(6));
    assert!(
        matches!(found[..], [BuildMistake::PoolTooSmall { connections: 6, slots: 7, .. }]),
        "{found:?}"
    );
    let text = found[0].to_string();
    for part in ["6 connections", "7 slots", "mails 3", "bills 4"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[tokio::test]
async fn a_pool_need_not_be_larger_than_the_slots_that_queues_share() {
    let lease = Hold::Lease(Duration::from_secs(30));
    let builder = |connections, slots| {
        Processor::builder(pool(connections))
            .queue(QueueOptions::new("mails").concurrency(3), nothing())
            .queue(QueueOptions::new("bills").concurrency(4), nothing())
            .queue(QueueOptions::new("films").concurrency(4).hold(lease), nothing())
            .slots(slots)
    };
    // One for the claims of leases.
    assert!(builder(6, 5).build().is_ok());
    assert!(builder(8, 100).build().is_ok());
    for (connections, slots, needed) in [(5, 5, 6), (7, 100, 8)] {
        let found = mistakes(builder(connections, slots));
        assert!(
            matches!(found[..], [BuildMistake::PoolTooSmall { slots, .. }] if slots == needed),
            "{found:?}"
        );
    }
    let text = mistakes(builder(5, 5))[0].to_string();
    for part in ["5 connections", "6 slots", "mails 3", "bills 4", "films 1", "5 at once"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[tokio::test]
async fn all_processors_on_one_pool_are_added_up() {
    let (one, another) = (pool(6), pool(4));
    let on = |pool: &PgPool| {
        let options = QueueOptions::new("mails").concurrency(4);
        Processor::builder(pool.clone()).queue(options, nothing())
    };
    let first = on(&one).build().unwrap();
    let found = mistakes(on(&one));
    assert!(
        matches!(found[..], [BuildMistake::PoolTooSmall { connections: 6, slots: 8, .. }]),
        "{found:?}"
    );
    let text = found[0].to_string();
    for part in ["mails 4", "other processors on this pool 4"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    // Neither a refused one, nor one on another pool, nor one that is dropped or has stopped.
    assert!(on(&another).build().is_ok());
    let small = QueueOptions::new("bills").concurrency(2);
    let second = Processor::builder(one.clone()).queue(small, nothing()).build().unwrap();
    assert_eq!(mistakes(on(&one)).len(), 1);
    drop(first);
    let third = on(&one).build().unwrap();
    let running = third.start_when_ready();
    assert_eq!(mistakes(on(&one)).len(), 1);
    running.shutdown(Duration::ZERO).await;
    assert!(on(&one).build().is_ok());
    drop(second);
}

#[tokio::test]
async fn a_pool_that_leased_handlers_may_wait_for_is_warned_of() {
    let lease = Hold::Lease(Duration::from_secs(30));
    for (slots, warned) in [(4, false), (24, true)] {
        let logged = Logged::default();
        let _guard = logged.start();
        let options = QueueOptions::new("q").concurrency(slots).hold(lease);
        let built = Processor::builder(pool(4)).queue(options, nothing()).build();
        assert!(built.is_ok());
        let text = logged.text();
        assert_eq!(text.contains("handlers=24 connections=4"), warned, "{text}");
        assert_eq!(text.contains("max_connections"), warned, "{text}");
    }
}

#[tokio::test]
async fn every_setting_out_of_its_range_is_named() {
    let century = Duration::from_hours(101 * 366 * 24);
    let builder = Processor::builder(pool(1))
        .poll_interval(Duration::ZERO)
        .maintenance_interval(Duration::from_millis(1))
        .slots(0)
        .watchdog(Watchdog::new(Duration::ZERO).shutdown_margin(Duration::MAX))
        .queue(
            QueueOptions::new("q")
                .concurrency(0)
                .weight(0)
                .retry(RetryPolicy::new(0).factor(0.5).jitter(2.0).cap(Duration::MAX))
                .timeout(Duration::ZERO)
                .keep_succeeded(Retention::For(century))
                .keep_failed(Retention::For(century))
                .keep_cancelled(Retention::For(century)),
            nothing(),
        );
    let found = mistakes(builder);
    let settings: Vec<_> =
        out_of_range(&found).iter().map(|(queue, setting, _)| (*queue, *setting)).collect();
    let expected = [
        ("q", "concurrency"),
        ("q", "weight"),
        ("q", "retry.max_attempts"),
        ("q", "retry.factor"),
        ("q", "retry.jitter"),
        ("q", "retry.cap"),
        ("q", "timeout"),
        ("q", "keep_succeeded"),
        ("q", "keep_failed"),
        ("q", "keep_cancelled"),
        ("(all)", "poll_interval"),
        ("(all)", "maintenance_interval"),
        ("(all)", "slots"),
        ("(all)", "watchdog"),
        ("(all)", "watchdog.shutdown_margin"),
    ];
    assert_eq!(settings, expected);

    let builder = Processor::builder(pool(1))
        .poll_interval(Duration::from_hours(2))
        .maintenance_interval(Duration::from_hours(25))
        .queue(
            QueueOptions::new("q")
                .concurrency(1)
                .weight(101)
                .timeout(Duration::MAX)
                .retry(RetryPolicy::new(u32::MAX).factor(f64::INFINITY)),
            nothing(),
        );
    let found = mistakes(builder);
    assert_eq!(
        out_of_range(&found),
        [
            ("q", "weight", "101"),
            ("q", "retry.max_attempts", "4294967295"),
            ("q", "retry.factor", "inf"),
            ("q", "timeout", "18446744073709551615.999999999s"),
            ("(all)", "poll_interval", "7200s"),
            ("(all)", "maintenance_interval", "90000s"),
        ]
    );
}

#[tokio::test]
async fn mistakes_of_all_kinds_are_reported_together() {
    let builder = Processor::builder(pool(1))
        .queue(QueueOptions::new("").concurrency(1), nothing())
        .queue(QueueOptions::new("q").concurrency(usize::MAX), nothing())
        .queue(QueueOptions::new("q").concurrency(usize::MAX), nothing())
        .queue(QueueOptions::new("a\nb").concurrency(1), nothing());
    let found = mistakes(builder);
    assert!(
        matches!(
            &found[..],
            [
                BuildMistake::Name(NameError::Empty { field: "queue" }),
                BuildMistake::OutOfRange { setting: "concurrency", .. },
                BuildMistake::OutOfRange { setting: "concurrency", .. },
                BuildMistake::Twice { .. },
                BuildMistake::Name(NameError::Control { character: '\n', .. }),
                BuildMistake::PoolTooSmall { connections: 1, .. },
            ]
        ),
        "{found:?}"
    );
}

#[tokio::test]
async fn what_is_built_shows_its_settings_and_no_secrets() {
    let pool = PgPoolOptions::new()
        .max_connections(2)
        .connect_lazy("postgres://me:hunter2@127.0.0.1:1/nowhere")
        .unwrap();
    let client = Client::new("billing").unwrap();
    let processor = Processor::builder(pool)
        .client(&client)
        .queue(
            QueueOptions::new("mails")
                .concurrency(2)
                .no_timeout()
                .out_of_attempts(OutOfAttempts::Halt)
                .keep_succeeded(Retention::Never)
                .keep_failed(Retention::Forever),
            nothing(),
        )
        .listen(false)
        .maintenance_interval(None)
        .poll_interval(Duration::from_secs(2))
        .build()
        .unwrap();
    let shown = format!("{processor:?}");
    for part in ["billing", "mails", "Halt", "Never", "Forever", "2s", "None"] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[test]
fn a_client_is_made_for_schemas_that_postgresql_can_have() {
    for good in ["seriatim", "My \"odd\" schema", &"x".repeat(50), "ü"] {
        assert_eq!(Client::new(good).unwrap().schema(), good);
    }
    for (bad, word) in [
        ("", "empty"),
        ("a\0", "control"),
        ("pg_jobs", "pg_"),
        (&"x".repeat(51), "51"),
        (&"ü".repeat(26), "52"),
    ] {
        let error = Client::new(bad).map(drop).unwrap_err().to_string();
        assert!(error.contains("schema") && error.contains(word), "{error}");
    }
}
