//! The functions of the schema: `sql/functions/` has their text. Their constants and shared
//! fragments are filled in here, and nowhere else.

use std::time::Duration;

use sqlx::migrate::{Migration, MigrationType};
use sqlx::{AssertSqlSafe, SqlSafeStr};

use crate::job::advice::MOVED_TO;
use crate::job::batch;
use crate::job::bytes::hex;
use crate::job::counts::QueueCounts;
use crate::job::explanation::BoundedCount;
use crate::job::headers;
use crate::job::job::Job;
use crate::job::job_error::MESSAGE_LIMIT;
use crate::job::name;
use crate::job::new_job::{ATTRIBUTES_LIMIT, DATA_LIMIT};
use crate::job::outcome::{EXHAUSTED, EXPIRED, SNOOZED_OUT};
use crate::job::progress;
use crate::job::queue_options::{QueueOptions, SNOOZE_LIMIT};
use crate::job::queue_settings::QueueSettings;
use crate::job::rate::Rate;
use crate::job::retry::{MAX_DELAY, RetryPolicy};
use crate::store::claim::CLAIM_BYTES;
use crate::store::enqueue::{BATCH_SEALED, BATCH_UNKNOWN};
use crate::store::fragments::{
    CANCELLED, CLAIMED, FLAG_AT, FREE_JOB, GRACE, IS_LISTED_DEAD_LETTER, LOOKED_AT, LOST,
    PRIORITY_AGING, QUEUED_AGAIN, RESTART_GRACE, TIMELINE, UNHALTED, WAITS_AS_DEAD_LETTER,
    assignments, claimed_count, claimed_jobs, disposition, free_group, has_jobs, is_paused, lapsed,
    over, paused, requeued, succeeded,
};
use crate::store::loaded_job::{LARGE, is_small};
use crate::store::names::Names;

/// When a receive reads a group again whose head another transaction has locked.
const RETRY_SOON: Duration = Duration::from_millis(20);
/// How long a client may leave a transaction idle that has received from a queue with a limit.
const OPEN_LIMITED: Duration = Duration::from_secs(1);
/// How long a statement of the library waits for a lock that `SKIP LOCKED` does not skip.
const LOCK_TIMEOUT: Duration = Duration::from_millis(100);
/// How many jobs one transaction parks of one group.
const PARK_BATCH: u32 = 1000;

/// The files, each behind those whose functions its SQL functions call.
const FILES: &[&str] = &[
    include_str!("../../sql/functions/plans.sql"),
    include_str!("../../sql/functions/suspicion.sql"),
    include_str!("../../sql/functions/history.sql"),
    include_str!("../../sql/functions/checks.sql"),
    include_str!("../../sql/functions/wake_up.sql"),
    include_str!("../../sql/functions/dedup.sql"),
    include_str!("../../sql/functions/batch_job.sql"),
    include_str!("../../sql/functions/enqueue.sql"),
    include_str!("../../sql/functions/enqueue_jobs.sql"),
    include_str!("../../sql/functions/stored_job.sql"),
    include_str!("../../sql/functions/claimed.sql"),
    include_str!("../../sql/functions/attempt.sql"),
    include_str!("../../sql/functions/room.sql"),
    include_str!("../../sql/functions/front.sql"),
    include_str!("../../sql/functions/adopt.sql"),
    include_str!("../../sql/functions/tidy_flags.sql"),
    include_str!("../../sql/functions/lock.sql"),
    include_str!("../../sql/functions/head.sql"),
    include_str!("../../sql/functions/unique.sql"),
    include_str!("../../sql/functions/start.sql"),
    include_str!("../../sql/functions/defer.sql"),
    include_str!("../../sql/functions/ungrouped.sql"),
    include_str!("../../sql/functions/aging.sql"),
    include_str!("../../sql/functions/simple_claim.sql"),
    include_str!("../../sql/functions/claim.sql"),
    include_str!("../../sql/functions/hold.sql"),
    include_str!("../../sql/functions/limit_key.sql"),
    include_str!("../../sql/functions/settle.sql"),
    include_str!("../../sql/functions/warm_up.sql"),
    include_str!("../../sql/functions/presence.sql"),
    include_str!("../../sql/functions/progress.sql"),
    include_str!("../../sql/functions/settings.sql"),
    include_str!("../../sql/functions/dead_letter.sql"),
    include_str!("../../sql/functions/failed.sql"),
    include_str!("../../sql/functions/receive_job.sql"),
    include_str!("../../sql/functions/receipt.sql"),
    include_str!("../../sql/functions/receiver.sql"),
    include_str!("../../sql/functions/upkeep.sql"),
    include_str!("../../sql/functions/receive.sql"),
    include_str!("../../sql/functions/ack.sql"),
    include_str!("../../sql/functions/nack.sql"),
    include_str!("../../sql/functions/extend.sql"),
    include_str!("../../sql/functions/many.sql"),
    include_str!("../../sql/functions/processors.sql"),
    include_str!("../../sql/functions/waiting.sql"),
    include_str!("../../sql/functions/overview.sql"),
    include_str!("../../sql/functions/metrics.sql"),
    include_str!("../../sql/functions/operation.sql"),
    include_str!("../../sql/functions/control.sql"),
    include_str!("../../sql/functions/abort.sql"),
    include_str!("../../sql/functions/silent.sql"),
    include_str!("../../sql/functions/park.sql"),
    include_str!("../../sql/functions/pause.sql"),
    include_str!("../../sql/functions/redrive.sql"),
    include_str!("../../sql/functions/move.sql"),
    include_str!("../../sql/functions/move_task.sql"),
    include_str!("../../sql/functions/schedule.sql"),
    include_str!("../../sql/functions/batch.sql"),
    include_str!("../../sql/functions/parked.sql"),
    include_str!("../../sql/functions/purge.sql"),
    include_str!("../../sql/functions/node.sql"),
    include_str!("../../sql/functions/counts.sql"),
    include_str!("../../sql/functions/group_state.sql"),
    include_str!("../../sql/functions/explain.sql"),
    include_str!("../../sql/functions/switch.sql"),
    include_str!("../../sql/functions/maintain.sql"),
];

/// The views, one a file. They are made behind the functions that they call.
const VIEWS: &[&str] = &[
    include_str!("../../sql/views/queue_overview.sql"),
    include_str!("../../sql/views/group_overview.sql"),
    include_str!("../../sql/views/dead_letters.sql"),
    include_str!("../../sql/views/stopped.sql"),
];

/// The beginning of a view's signature.
const VIEW: &str = "view ";

/// The size of a job's data, as it is stored: large data is compressed.
const JOB_BYTES: &str =
    "(coalesce(pg_column_size(j.data), 0) + coalesce(pg_column_size(j.payload), 0))::bigint";

/// The settings that pin the plans of the library's statements, and limit their waits. Without the
/// first, `PostgreSQL` takes plans for the arguments' values to be cheaper, and plans each call
/// anew.
const PINNED: [(&str, &str); 8] = [
    ("plan_cache_mode", "'force_generic_plan'"),
    ("enable_seqscan", "'off'"),
    ("enable_bitmapscan", "'off'"),
    ("enable_sort", "'off'"),
    ("enable_mergejoin", "'off'"),
    ("enable_hashjoin", "'off'"),
    ("jit", "'off'"),
    ("lock_timeout", "{lock_timeout}"),
];

fn pinned(setting: impl Fn(&str, &str) -> String, between: &str) -> String {
    PINNED.map(|(name, value)| setting(name, value)).join(between)
}

/// The values of each `{key}`, the same in every schema.
fn constants() -> [(&'static str, String); 76] {
    let default = RetryPolicy::default();
    let seconds = |time: Duration| format!("interval '{} s'", time.as_secs_f64());
    [
        // These have others in them.
        ("{disposition}", disposition("j.attempts")),
        ("{head_disposition}", disposition("(j.attempts + head.lost)")),
        ("{claimed_jobs_g}", claimed_jobs("g")),
        ("{claimed_count_g}", claimed_count("g")),
        ("{claimed}", CLAIMED.into()),
        ("{lost}", quoted(LOST)),
        ("{job_bytes}", JOB_BYTES.into()),
        ("{claim_bytes}", CLAIM_BYTES.to_string()),
        ("{is_small}", is_small("j", &format!("limits.bytes / {LARGE}"))),
        ("{data_limit}", DATA_LIMIT.to_string()),
        ("{attributes_limit}", ATTRIBUTES_LIMIT.to_string()),
        ("{message_limit}", MESSAGE_LIMIT.to_string()),
        ("{free_group}", free_group()),
        ("{succeeded}", succeeded()),
        ("{free_job}", FREE_JOB.into()),
        ("{requeued}", requeued()),
        ("{queued_again}", QUEUED_AGAIN.into()),
        ("{cancelled}", assignments(&CANCELLED)),
        ("{unhalted}", assignments(&UNHALTED)),
        ("{flag_at}", FLAG_AT.into()),
        (
            "{is_listed_dead_letter}",
            IS_LISTED_DEAD_LETTER.replace("{claim_of}", "{schema}.claim_of"),
        ),
        ("{waits_as_dead_letter}", WAITS_AS_DEAD_LETTER.replace("{claim_of}", "{schema}.claim_of")),
        ("{paused_q}", paused("q")),
        ("{paused_s}", paused("s")),
        ("{paused_old}", paused("old")),
        ("{has_jobs_g}", has_jobs("g")),
        ("{is_paused_g}", is_paused("g")),
        ("{is_paused_j}", is_paused("j")),
        ("{looked_at}", LOOKED_AT.to_string()),
        ("{over_g}", over("g", "ready_at")),
        ("{over_j}", over("j", "lease_until")),
        ("{lapsed_g}", lapsed("g", "ready_at", "queue_group")),
        ("{lapsed_j}", lapsed("j", "lease_until", "job")),
        ("{moved_to}", MOVED_TO.into()),
        ("{timeline}", TIMELINE.into()),
        ("{grace}", seconds(GRACE)),
        ("{restart_grace}", seconds(RESTART_GRACE)),
        ("{priority_aging}", seconds(PRIORITY_AGING)),
        ("{retry_soon}", seconds(RETRY_SOON)),
        ("{pinned}", pinned(|name, value| format!("set {name} = {value}"), " ")),
        ("{pin}", pinned(|name, value| format!("set_config('{name}', {value}, true)"), ", ")),
        ("{open_limited}", seconds(OPEN_LIMITED)),
        ("{lock_timeout}", format!("'{}ms'", LOCK_TIMEOUT.as_millis())),
        ("{park_batch}", PARK_BATCH.to_string()),
        ("{keep_ms}", keep_ms()),
        // Receivers' defaults without stored settings are processors' defaults without options.
        ("{default_attempts}", default.max_attempts.to_string()),
        ("{backoff}", seconds(default.base)),
        ("{exhausted}", quoted(EXHAUSTED)),
        ("{snoozed_out}", quoted(SNOOZED_OUT)),
        ("{max_snoozes}", QueueOptions::MAX_SNOOZES.to_string()),
        ("{snooze_limit}", SNOOZE_LIMIT.to_string()),
        ("{expired}", quoted(EXPIRED)),
        ("{dedup_window_ms}", QueueSettings::DEDUP_WINDOW.as_millis().to_string()),
        ("{backoff_cap}", seconds(QueueSettings::BACKOFF_CAP)),
        ("{max_rate}", Rate::MAX_PER_SECOND.to_string()),
        ("{max_delay_ms}", MAX_DELAY.as_millis().to_string()),
        ("{finished_limit}", QueueCounts::FINISHED_LIMIT.to_string()),
        ("{count_limit}", (BoundedCount::LIMIT + 1).to_string()),
        ("{history_limit}", Job::HISTORY_LIMIT.to_string()),
        ("{queue_limit}", name::QUEUE_LIMIT.to_string()),
        ("{group_limit}", name::GROUP_LIMIT.to_string()),
        ("{job_name_limit}", name::JOB_NAME_LIMIT.to_string()),
        ("{reference_limit}", name::REFERENCE_LIMIT.to_string()),
        ("{dedup_limit}", name::DEDUP_LIMIT.to_string()),
        ("{progress_limit}", progress::MESSAGE_LIMIT.to_string()),
        ("{checkpoint_limit}", progress::CHECKPOINT_LIMIT.to_string()),
        ("{reason_limit}", name::REASON_LIMIT.to_string()),
        ("{schedule_limit}", name::SCHEDULE_LIMIT.to_string()),
        ("{ended_batch}", quoted(headers::ENDED_BATCH)),
        ("{batch_limit}", name::BATCH_LIMIT.to_string()),
        ("{batch_sealed}", quoted(BATCH_SEALED)),
        ("{batch_unknown}", quoted(BATCH_UNKNOWN)),
        ("{batch_result_limit}", batch::RESULT_LIMIT.to_string()),
        ("{scheduled_for}", quoted(headers::SCHEDULED_FOR)),
        ("{headers_limit}", headers::LIMIT.to_string()),
        ("{content_type_limit}", name::CONTENT_TYPE_LIMIT.to_string()),
    ]
}

/// How long ended jobs stay by default, as an array.
fn keep_ms() -> String {
    let kept = QueueOptions::new("q").kept_ms();
    let kept = kept.map(|ms| ms.map_or_else(|| String::from("null"), |ms| ms.to_string()));
    format!("array[{}]::bigint[]", kept.join(", "))
}

/// Returns the checksum of SQL, as recorded in the table `migration`.
pub(crate) fn checksum(text: &str) -> Vec<u8> {
    let sql = AssertSqlSafe(text).into_sql_str();
    let migration = Migration::new(0, "".into(), MigrationType::Simple, sql, false);
    migration.checksum.into_owned()
}

/// A function, or a view, as this version of the library makes it.
#[derive(Debug, Clone)]
pub(crate) struct Function {
    /// Its name and the types of its arguments, as `to_regprocedure` takes them. For a view: `view`
    /// and its name.
    pub(crate) signature: String,
    /// The checksum of its text with the constants filled in, the same in every schema.
    pub(crate) checksum: String,
    /// `{schema}`, `{schema_text}` and `{job_table}` are still to be filled in.
    text: String,
}

impl Function {
    /// From `create or replace …` up to the end of its body.
    pub(crate) fn new(text: &str) -> Self {
        let checksum = hex(&checksum(text));
        Self { signature: signature(text), checksum, text: text.to_owned() }
    }

    /// The same, with another text.
    #[cfg(test)]
    pub(crate) fn changed(&self, change: impl FnOnce(&str) -> String) -> Self {
        Self::new(&change(&self.text))
    }

    /// The view's name; `None` for a function.
    pub(crate) fn view(&self) -> Option<&str> {
        view(&self.signature)
    }

    /// The statement that makes it in a schema.
    pub(crate) fn statement(&self, names: &Names) -> String {
        in_schema(&self.text, names)
    }

    /// Its body as the catalogue has it.
    pub(crate) fn body(&self, names: &Names) -> String {
        let body = self.text.split("$$").nth(1).unwrap_or_default();
        in_schema(body, names)
    }
}

/// All functions, in the order in which they are made.
pub(crate) fn functions() -> Vec<Function> {
    let constants = constants();
    let fill = |file: &&str| {
        constants.iter().fold((*file).to_owned(), |text, (key, value)| text.replace(key, value))
    };
    let filled: Vec<String> = FILES.iter().chain(VIEWS).map(fill).collect();
    filled.iter().flat_map(|file| split(file)).map(Function::new).collect()
}

/// The view's name of a signature; `None` for a function's.
pub(crate) fn view(signature: &str) -> Option<&str> {
    signature.strip_prefix(VIEW)
}

/// The statements of a file, without the comments above them. A view has a file of its own.
fn split(file: &str) -> Vec<&str> {
    if let Some(begin) = file.find("create or replace view") {
        return vec![file[begin..].trim_end()];
    }
    let mut statements = Vec::new();
    let mut rest = file;
    while let Some(begin) = rest.find("create or replace function") {
        let body = rest[begin..].find("$$").map_or(rest.len(), |at| begin + at + 2);
        let end = rest[body..].find("$$;").map_or(rest.len(), |at| body + at + 3);
        statements.push(&rest[begin..end]);
        rest = &rest[end..];
    }
    statements
}

/// The name and the types of the arguments of a `create or replace function`, or a view's.
fn signature(text: &str) -> String {
    if let Some(view) = text.strip_prefix("create or replace view {schema}.") {
        return format!("{VIEW}{}", view.split_whitespace().next().unwrap_or_default());
    }
    let head = text.trim_start_matches("create or replace function").trim_start();
    let head = head.trim_start_matches("{schema}.");
    let (name, rest) = head.split_once('(').unwrap_or((head, ""));
    let mut depth = 1;
    let end = rest.find(|c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        depth == 0
    });
    let arguments = rest[..end.unwrap_or(0)].split(',').map(str::trim);
    let types = arguments.filter(|argument| !argument.is_empty() && !argument.starts_with("out "));
    let types = types.map(|argument| {
        let argument = argument.split(" default ").next().unwrap_or(argument);
        let argument = argument.trim_start_matches("inout ");
        let of = argument.split_once(char::is_whitespace).map_or(argument, |(_, of)| of.trim());
        of.trim_start_matches("{schema}.")
    });
    format!("{name}({})", types.collect::<Vec<_>>().join(", "))
}

/// Fills in a schema's name, in one pass: whatever the name is, nothing in it is filled in.
fn in_schema(text: &str, names: &Names) -> String {
    let values = [
        ("{schema}", Names::quote(names.schema())),
        ("{schema_text}", quoted(names.schema())),
        ("{job_table}", quoted(&names.quoted("job"))),
    ];
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('{') {
        let (before, behind) = rest.split_at(at);
        filled.push_str(before);
        let value = values.iter().find(|(key, _)| behind.starts_with(key));
        let (value, length) = value.map_or(("{", 1), |(key, value)| (value, key.len()));
        filled.push_str(value);
        rest = &behind[length..];
    }
    filled + rest
}

/// A literal, however the session reads strings.
pub(crate) fn quoted(text: &str) -> String {
    let escape = if text.contains('\\') { "E" } else { "" };
    format!("{escape}'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_file_of_functions_is_carried() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("sql/functions");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let files: HashSet<_> = files.map(|path| std::fs::read_to_string(path).unwrap()).collect();
        assert_eq!(files, FILES.iter().map(|file| (*file).to_owned()).collect());
        let statements: usize = files.iter().map(|file| file.matches("\n$$;").count()).sum();
        let ends: usize = files.iter().map(|file| file.matches("\nend $$;").count()).sum();
        assert_eq!(functions().len(), statements + ends + VIEWS.len());
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("sql/views");
        assert_eq!(std::fs::read_dir(folder).unwrap().count(), VIEWS.len());
    }

    #[test]
    fn a_function_with_a_search_path_names_no_schema() {
        for file in FILES {
            for function in split(file) {
                let (head, body) = function.split_once("$$").unwrap();
                let name = head.lines().next().unwrap();
                let both = head.contains("search_path") && body.contains("{schema}.");
                assert!(!both, "{name}: the schema is in its search_path");
            }
        }
    }

    #[test]
    fn a_line_of_sql_has_at_most_110_columns() {
        for folder in ["sql/functions", "sql/views"] {
            let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let text = std::fs::read_to_string(&path).unwrap();
                let long = text.lines().position(|line| line.chars().count() > 110);
                assert_eq!(long.map(|index| index + 1), None, "the line of {}", path.display());
            }
        }
    }

    #[test]
    fn nothing_is_left_to_fill_in() {
        let names = Names::new("{start} \"x\" {schema}");
        for function in functions() {
            let text = function.text.replace("'{}'", "");
            let text = text.replace("{schema}", "").replace("{schema_text}", "");
            assert!(!text.replace("{job_table}", "").contains("{r"), "{text}");
            for (key, _) in constants() {
                assert!(!function.text.contains(key), "{key} in {}", function.signature);
            }
            assert_eq!(function.body(&names).is_empty(), function.view().is_some());
        }
    }

    #[test]
    fn a_signature_has_the_types_alone() {
        let text = "create or replace function {schema}.f(a text, b integer default 1,\n  \
                    c timestamptz default null, out d text) returns void";
        assert_eq!(signature(text), "f(text, integer, timestamptz)");
        let all = functions();
        let distinct: HashSet<_> = all.iter().map(|function| &function.signature).collect();
        assert_eq!(distinct.len(), all.len());
        assert!(all.iter().any(|function| function.signature == "pin_plans()"));
        assert!(all.iter().any(|function| function.view() == Some("stopped")));
    }

    #[test]
    fn a_schemas_name_is_filled_in_as_it_is() {
        let names = Names::new("a\\'{schema}");
        let filled = in_schema("{schema} {schema_text} {x}", &names);
        assert_eq!(filled, "\"a\\'{schema}\" E'a\\\\''{schema}' {x}");
    }
}
