//! The names of one schema's tables, types and functions.

use sea_query::{DynIden, IntoIden, IntoTableRef, TableRef};

/// The names in one schema.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    schema: String,
}

impl Names {
    pub(crate) fn new(schema: &str) -> Self {
        Self { schema: schema.to_owned() }
    }

    pub(crate) fn schema(&self) -> &str {
        &self.schema
    }

    fn table(&self, name: &'static str) -> (DynIden, DynIden) {
        (self.schema.clone().into_iden(), name.into_iden())
    }

    pub(crate) fn job(&self) -> TableRef {
        self.table("job").into_table_ref()
    }

    pub(crate) fn queue_group(&self) -> TableRef {
        self.table("queue_group").into_table_ref()
    }

    pub(crate) fn queue(&self) -> TableRef {
        self.table("queue").into_table_ref()
    }

    pub(crate) fn group_setting(&self) -> TableRef {
        self.table("group_setting").into_table_ref()
    }

    /// `"schema"."name"`, for what is no table of a query (types, the channel's LISTEN).
    pub(crate) fn quoted(&self, name: &str) -> String {
        format!("{}.{}", Self::quote(&self.schema), Self::quote(name))
    }

    /// A call that draws the next job's id.
    pub(crate) fn next_id(&self) -> String {
        format!("nextval('{}')", self.quoted("job_id_seq").replace('\'', "''"))
    }

    /// Returns plain SQL in which `{name}` stands for that table or function of the schema. Blanks
    /// at the begin of lines go.
    pub(crate) fn sql(&self, text: &str) -> String {
        self.sql_with(text, &[])
    }

    /// Returns the same with pieces of SQL: `{piece}` stands for the piece of that name.
    pub(crate) fn sql_with(&self, text: &str, pieces: &[(&str, &str)]) -> String {
        let mut sql = String::with_capacity(text.len() * 2);
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if !sql.is_empty() {
                sql.push('\n');
            }
            let mut rest = line;
            while let Some((before, name)) = rest.split_once('{') {
                let (name, after) = name.split_once('}').unwrap_or((name, ""));
                sql.push_str(before);
                match pieces.iter().find(|(piece, _)| *piece == name) {
                    Some((_, piece)) => sql.push_str(piece),
                    None => sql.push_str(&self.quoted(name)),
                }
                rest = after;
            }
            sql.push_str(rest);
        }
        sql
    }

    pub(crate) fn quote(name: &str) -> String {
        format!("\"{}\"", name.replace('"', "\"\""))
    }

    /// The channel of the wake-ups.
    pub(crate) fn channel(&self) -> String {
        format!("{}.wake", self.schema)
    }
}
