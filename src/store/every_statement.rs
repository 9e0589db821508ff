//! Every statement of the store, compiled for a schema with an odd name.

use std::fs;
use std::path::Path;

use crate::store::names::Names;
use crate::store::statement::InFile;
use crate::store::{
    admin, enqueue, hold, lease, loaded_job, presence, progress, query, receive, release, rights,
    sessions, settle, shard,
};

const FILES: &[InFile] = &[
    admin::batches::ALL,
    admin::control::ALL,
    admin::move_jobs::ALL,
    admin::move_tasks::ALL,
    admin::park::ALL,
    admin::pause::ALL,
    admin::policy::ALL,
    admin::prune::ALL,
    admin::purge::ALL,
    admin::queue_settings::ALL,
    admin::redrive::ALL,
    admin::schedules::ALL,
    enqueue::ALL,
    hold::ALL,
    lease::ALL,
    loaded_job::ALL,
    presence::ALL,
    progress::ALL,
    query::explain::ALL,
    query::for_tests::ALL,
    query::inspect::ALL,
    query::metrics::ALL,
    query::minutes::ALL,
    query::operations::ALL,
    query::unserved::ALL,
    query::overview::ALL,
    query::recent::ALL,
    query::rehearse::ALL,
    receive::ALL,
    release::ALL,
    rights::ALL,
    sessions::ALL,
    settle::many::ALL,
    settle::one::ALL,
    settle::turn::ALL,
    shard::ALL,
];

/// The tables and sequences of a schema.
const RELATIONS: [&str; 18] = [
    "cancel_request",
    "dedup",
    "group_setting",
    "job",
    "job_id_seq",
    "job_progress",
    "key_limit",
    "migration",
    "move_task",
    "operation",
    "processor",
    "queue",
    "queue_group",
    "queue_minute",
    "receive_attempt",
    "receiver",
    "schedule",
    "server",
];

/// Functions of a schema that statements call.
const FUNCTIONS: [&str; 71] = [
    "abort",
    "abort_silent_run",
    "ack",
    "adopt",
    "claim_of",
    "claimed_groups",
    "deep_groups",
    "sleeping_groups",
    "first_groups",
    "groups_at_key_limit",
    "groups_with_parked",
    "new_groups",
    "groups_in_line",
    "rechecked_groups",
    "end_attempt",
    "has_claim",
    "hold_job",
    "job_state",
    "succeed",
    "unclaimed",
    "unfinished",
    "cancel",
    "cancel_move_task",
    "configure_queue",
    "counts",
    "discard_parked",
    "discard_jobs",
    "explain",
    "explain_group",
    "fire_due",
    "fire_schedule",
    "group_state",
    "locker",
    "move_jobs",
    "park",
    "pause",
    "pause_schedule",
    "processors",
    "purge_groups",
    "purge_ungrouped",
    "queue_overview",
    "record_operation",
    "redrive",
    "redrive_jobs",
    "redrive_parked",
    "release_node",
    "rest",
    "remove_schedule",
    "resume_schedule",
    "set_group_policy",
    "set_key_limit",
    "set_schedule",
    "retry",
    "run_move_tasks",
    "run_now",
    "start_move_task",
    "unhalt",
    "resume",
    "claim_dedup_id",
    "claim_unique_key",
    "suspect_until",
    "extend",
    "is_suspected",
    "seems_idle",
    "nack",
    "note_server",
    "receive",
    "saw_burst",
    "server_since",
    "this_server",
    "wake",
];

const SCHEMA: &str = "odd \"schema\" $1 ?2";
const QUOTED: &str = "\"odd \"\"schema\"\" $1 ?2\".";

/// Says what is wrong with a statement for [`SCHEMA`]: a name of the schema without it, or the
/// schema without quotes.
fn mistake(text: &str) -> Option<String> {
    if text.replace(QUOTED, "").contains("odd") {
        return Some("the schema is not quoted".to_owned());
    }
    // Names in quotes are as good as without; a schema's name is one word then.
    let text = text.replace(QUOTED, "SCHEMA.").replace('"', "").replace(['(', ')', ','], " ");
    let words: Vec<&str> = text.split_whitespace().collect();
    if let Some(function) = words.iter().find(|word| FUNCTIONS.contains(word)) {
        return Some(format!("{function} has no schema"));
    }
    for pair in words.windows(2) {
        let names_a_table =
            ["from", "join", "update", "into"].contains(&pair[0].to_lowercase().as_str());
        if names_a_table && RELATIONS.contains(&pair[1]) {
            return Some(format!("{} {} has no schema", pair[0], pair[1]));
        }
    }
    None
}

/// The files below `folder` that declare statements.
fn files_with_statements(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_with_statements(&path, found);
        } else if fs::read_to_string(&path).unwrap().lines().any(|line| line == "statements! {") {
            let root = Path::new(env!("CARGO_MANIFEST_DIR"));
            found.push(path.strip_prefix(root).unwrap().display().to_string());
        }
    }
}

#[test]
fn every_statement_quotes_the_schema() {
    let names = Names::new(SCHEMA);
    for (file, statements) in FILES {
        for (name, statement) in *statements {
            let text = statement.compile(&names);
            assert_eq!(mistake(&text), None, "{name} of {file}: {text}");
        }
    }
}

#[test]
fn every_file_with_statements_is_checked() {
    let mut found = Vec::new();
    files_with_statements(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store"), &mut found);
    found.sort_unstable();
    let mut checked: Vec<String> = FILES.iter().map(|(file, _)| (*file).to_owned()).collect();
    checked.sort_unstable();
    assert_eq!(found, checked);
}

#[test]
fn a_name_without_its_schema_is_a_mistake() {
    for text in [
        "select 1 from job j",
        "select 1 from (select 1 from \"queue\")",
        "update queue_group set ready_at = now()",
        "select adopt($1)",
        "select 1 from odd \"schema\" $1 ?2.job",
        "select \"odd \"schema\" $1 ?2\".adopt($1)",
    ] {
        assert!(mistake(text).is_some(), "{text}");
    }
    assert_eq!(mistake(&format!("select 1 from {QUOTED}\"job\"")), None);
}
