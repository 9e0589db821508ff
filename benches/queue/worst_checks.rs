//! Tests of `worst`, with little before the job, and of the settings of handlers that take time.

use clap::Parser as _;
use seriatim::testing::Server;

use crate::Result;
use crate::settings::{Scenario, Settings, Sizes};
use crate::taker::By;
use crate::worst::{drain_pinned, wait_behind};
use crate::worst_cases::Case;

fn settings(options: &[&str]) -> Settings {
    Settings::parse_from([&["queue"], options].concat())
}

fn takers(settings: &Settings) -> Vec<By> {
    settings.ways().into_iter().map(By::Processor).chain([By::Receiver]).collect()
}

fn small(settings: &Settings) -> Sizes {
    Sizes { tries: 2, drains: 5, ..settings.sizes() }
}

#[tokio::test]
async fn a_job_behind_a_few_others_begins_and_so_do_more() -> Result<()> {
    let (server, settings) = (Server::builder().start().await?, settings(&[]));
    for by in takers(&settings) {
        for case in [Case::Nothing, Case::Busy, Case::Priority, Case::Sleeping] {
            let seen = wait_behind(&server, &small(&settings), by, case, 3).await?;
            assert_eq!(seen.delays.len(), 2, "{by:?}, {case:?}");
            assert!(seen.rate > 0.0, "{by:?}, {case:?}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_group_drains_beside_a_pinned_horizon() -> Result<()> {
    let (server, settings) = (Server::builder().start().await?, settings(&[]));
    for by in takers(&settings) {
        let sizes = small(&settings);
        let seen = drain_pinned(&server, &sizes, by, sizes.drains).await?;
        assert_eq!(seen.map(|seen| seen.delays.len()), [5, 5], "{by:?}");
    }
    Ok(())
}

#[test]
fn handlers_that_take_time_have_slots_of_their_own() {
    let given = settings(&["--work", "2000,10000"]);
    assert_eq!(given.sizes().work, [2_000, 10_000]);
    assert_eq!((given.ways().len(), given.work_ways().len()), (2, 2 * 3));
    let named = settings(&["--concurrency", "4,5", "--time-slice", "7", "--hold", "lease"]);
    assert_eq!((named.ways().len(), named.work_ways().len()), (2, 2));
}

#[test]
fn worst_runs_only_when_it_is_named() {
    assert!(!settings(&[]).chosen().contains(&Scenario::Worst));
    assert_eq!(settings(&["worst"]).chosen(), [Scenario::Worst]);
    assert_eq!(settings(&["--ahead", "7,8"]).sizes().ahead, [7, 8]);
}
