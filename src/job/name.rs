//! The checks of names of queues, groups and schemas, made before any SQL.

use crate::job::error::NameError;

/// Longest queue name, in characters.
pub(crate) const QUEUE_LIMIT: usize = 200;
/// Longest group id, in characters: with a queue name of four-byte characters it still fits an
/// index entry (2,704 bytes).
pub(crate) const GROUP_LIMIT: usize = 400;
/// Longest name of a kind of job, in characters.
pub(crate) const JOB_NAME_LIMIT: usize = 200;
/// Longest reference, in characters; it is in an index too, as the group is.
pub(crate) const REFERENCE_LIMIT: usize = 400;
/// Longest deduplication id, in characters: with its queue and group it must fit an index entry.
pub(crate) const DEDUP_LIMIT: usize = 128;
/// Longest content type, in characters.
pub(crate) const CONTENT_TYPE_LIMIT: usize = 200;
/// Longest name of a schedule, in characters.
pub(crate) const SCHEDULE_LIMIT: usize = 200;
/// Longest name of a batch, in characters.
pub(crate) const BATCH_LIMIT: usize = 200;
/// Longest reason of an operator or of a rest, and longest name of an operator, in characters.
pub(crate) const REASON_LIMIT: usize = 4_000;
/// Longest schema name, in bytes: `PostgreSQL` cuts identifiers at 63, and the wake-up channel adds
/// a suffix.
const SCHEMA_LIMIT: usize = 50;

pub(crate) fn check(field: &'static str, name: &str, limit: usize) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty { field });
    }
    let length = name.chars().count();
    if length > limit {
        return Err(NameError::TooLong { field, length, limit });
    }
    match name.char_indices().find(|(_, c)| c.is_control()) {
        Some((position, character)) => Err(NameError::Control { field, character, position }),
        None => Ok(()),
    }
}

/// Checks a text for people, such as the reason of an operator: `check_text` of `checks.sql` is the
/// same.
pub(crate) fn check_text(field: &'static str, text: &str) -> Result<(), NameError> {
    let length = text.chars().count();
    if length > REASON_LIMIT {
        return Err(NameError::TooLong { field, length, limit: REASON_LIMIT });
    }
    match text.char_indices().find(|(_, c)| *c == '\0') {
        Some((position, character)) => Err(NameError::Control { field, character, position }),
        None => Ok(()),
    }
}

pub(crate) fn check_queue(name: &str) -> Result<(), NameError> {
    check("queue", name, QUEUE_LIMIT)
}

/// Checks a queue, and a group of it.
pub(crate) fn check_lane(queue: &str, group: Option<&str>) -> Result<(), NameError> {
    check_queue(queue)?;
    group.map_or(Ok(()), |group| check("group", group, GROUP_LIMIT))
}

pub(crate) fn check_schema(name: &str) -> Result<(), NameError> {
    check("schema", name, usize::MAX)?;
    if name.len() > SCHEMA_LIMIT {
        return Err(NameError::TooLong {
            field: "schema",
            length: name.len(),
            limit: SCHEMA_LIMIT,
        });
    }
    // In a search path "$user" is the schema of the current role.
    if name.starts_with("pg_") || ["information_schema", "$user"].contains(&name) {
        return Err(NameError::Reserved { name: name.to_owned() });
    }
    // Function bodies stand between `$$`. The others are filled in with the schema's name.
    let part = ["$$", "{schema}", "{schema_text}", "{go}"].into_iter().find(|p| name.contains(p));
    if let Some(part) = part {
        return Err(NameError::Unusable { name: name.to_owned(), part });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_by_character() {
        assert!(check_queue("postings").is_ok());
        assert!(check("group", &"ü".repeat(GROUP_LIMIT), GROUP_LIMIT).is_ok());
        assert!(matches!(check_queue(""), Err(NameError::Empty { field: "queue" })));
        assert!(matches!(
            check("group", &"x".repeat(GROUP_LIMIT + 1), GROUP_LIMIT),
            Err(NameError::TooLong { length: 401, limit: 400, .. })
        ));
        assert!(matches!(
            check_queue("a\nb"),
            Err(NameError::Control { character: '\n', position: 1, .. })
        ));
    }

    #[test]
    fn a_schema_is_an_identifier_of_its_own() {
        assert!(check_schema("My \"odd\" schema").is_ok());
        assert!(matches!(
            check_schema(&"ü".repeat(26)),
            Err(NameError::TooLong { length: 52, limit: 50, .. })
        ));
        assert!(matches!(check_schema("$user"), Err(NameError::Reserved { .. })));
        assert!(matches!(check_schema("a$$b"), Err(NameError::Unusable { part: "$$", .. })));
        assert!(check_schema("{}$ ?1 $2").is_ok());
        assert!(matches!(check_schema("pg_jobs"), Err(NameError::Reserved { .. })));
    }
}
