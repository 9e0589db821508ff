//! sea-query as a template compiler: a statement is rendered once per schema and then only bound.
//!
//! Building and rendering costs as much as a tenth of a claim's round trip; binding a rendered one costs nothing.
//! Literals that a partial index or a plan depends on are inlined: a bound one loses the index at the sixth execution.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sea_query::{
    CommonTableExpression, DynIden, Expr, InsertStatement, IntoIden, IntoTableRef,
    PostgresQueryBuilder, SelectStatement, SubQueryStatement, TableRef, Value, Values, WithClause,
};
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Postgres};

/// A rendered statement. Its argument n is bound n-th, however often it occurs.
#[derive(Debug, Clone)]
pub(crate) struct Template {
    sql: Arc<str>,
    /// The same with another end: the driver uses the name that a connection has for a text, whatever it is told.
    without_name: Arc<str>,
    nameless: Nameless,
}

/// Whether statements are sent without names. A transaction pooler that keeps no track of names hands a client's session, and
/// with it the names, to the next client; what has no name is gone before its transaction ends.
pub(crate) type Nameless = Arc<AtomicBool>;

thread_local! {
    /// That of the store whose statements are being compiled.
    static COMPILING: RefCell<Nameless> = RefCell::default();
}

/// Runs `compile`, all of whose templates look at `nameless` from then on.
pub(in crate::store) fn looking_at<T>(nameless: &Nameless, compile: impl FnOnce() -> T) -> T {
    let before = COMPILING.replace(Arc::clone(nameless));
    let compiled = compile();
    COMPILING.set(before);
    compiled
}

/// `LIMIT` takes only a number: this much plus n stands for argument n.
const LIMIT: u64 = 9_000_000_000;

/// The `LIMIT` that argument `n` gives.
pub(in crate::store) fn limit(n: u64) -> u64 {
    LIMIT + n
}

/// A piece of SQL in which `?n` stands for argument n.
pub(in crate::store) fn sql(text: impl Into<std::borrow::Cow<'static, str>>) -> Expr {
    Expr::cust(text)
}

impl Template {
    /// Compiles what a sea-query statement's `build(PostgresQueryBuilder)` gave.
    pub(in crate::store) fn new((rendered, values): (String, Values)) -> Self {
        let nameless = COMPILING.with_borrow(Arc::clone);
        let sql = number(&rendered, &values);
        Self { without_name: format!("{sql} ").into(), sql: sql.into(), nameless }
    }

    /// The statement, ready for its arguments.
    pub(in crate::store) fn query(&self) -> Query<'static, Postgres, PgArguments> {
        let nameless = self.nameless.load(Ordering::Relaxed);
        let sql = if nameless { &self.without_name } else { &self.sql };
        sqlx::query(AssertSqlSafe(Arc::clone(sql))).persistent(!nameless)
    }
}

/// Turns `?n` and the limits' `$k` into the `$n` of the n-th argument, outside of quotes.
fn number(rendered: &str, values: &Values) -> String {
    let mut sql = String::with_capacity(rendered.len());
    let mut quote = None;
    let mut chars = rendered.chars().peekable();
    while let Some(c) = chars.next() {
        match quote {
            Some(open) if c == open => quote = None,
            None if c == '"' || c == '\'' => quote = Some(c),
            None if c == '?' || c == '$' => {
                let mut n = 0_usize;
                while let Some(digit) = chars.peek().and_then(|d| d.to_digit(10)) {
                    n = n * 10 + digit as usize;
                    chars.next();
                }
                match (c, values.0.get(n.wrapping_sub(1))) {
                    ('?', _) => _ = write!(sql, "${n}"),
                    (_, Some(Value::BigUnsigned(Some(n)))) if *n > LIMIT => {
                        _ = write!(sql, "${}", n - LIMIT);
                    }
                    (_, Some(Value::BigUnsigned(Some(n)))) => sql.push_str(&n.to_string()),
                    (_, other) => bound_by_mistake(other),
                }
                continue;
            }
            _ => {}
        }
        sql.push(c);
    }
    sql
}

/// Only limits are values; anything else would be a literal bound by mistake.
#[allow(clippy::panic)] // Statements are fixed at compile time; a unit test builds them all.
fn bound_by_mistake(value: Option<&Value>) -> ! {
    panic!("a statement has the value {value:?}: inline it or make it an argument")
}

/// The names of the tables in one schema.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    schema: String,
}

impl Names {
    pub(in crate::store) fn new(schema: &str) -> Self {
        Self { schema: schema.to_owned() }
    }

    pub(crate) fn schema(&self) -> &str {
        &self.schema
    }

    fn table(&self, name: &'static str) -> (DynIden, DynIden) {
        (self.schema.clone().into_iden(), name.into_iden())
    }

    pub(in crate::store) fn job(&self) -> TableRef {
        self.table("job").into_table_ref()
    }

    pub(in crate::store) fn queue_group(&self) -> TableRef {
        self.table("queue_group").into_table_ref()
    }

    pub(in crate::store) fn queue(&self) -> TableRef {
        self.table("queue").into_table_ref()
    }

    pub(in crate::store) fn dedup(&self) -> TableRef {
        self.table("dedup").into_table_ref()
    }

    pub(in crate::store) fn receive_attempt(&self) -> TableRef {
        self.table("receive_attempt").into_table_ref()
    }

    pub(in crate::store) fn group_setting(&self) -> TableRef {
        self.table("group_setting").into_table_ref()
    }

    pub(in crate::store) fn cancel_request(&self) -> TableRef {
        self.table("cancel_request").into_table_ref()
    }

    pub(in crate::store) fn processor(&self) -> TableRef {
        self.table("processor").into_table_ref()
    }

    /// `"schema"."name"`, for what is no table of a query (types, the channel's LISTEN).
    pub(in crate::store) fn quoted(&self, name: &str) -> String {
        format!("{}.{}", Self::quote(&self.schema), Self::quote(name))
    }

    /// A call that draws the next job's id.
    pub(in crate::store) fn next_id(&self) -> String {
        format!("nextval('{}')", self.quoted("job_id_seq").replace('\'', "''"))
    }

    /// Whether a row's claim is to be taken over: it was doubted a grace before `due`. A doubt from before the server's start
    /// is none (see the function).
    pub(in crate::store) fn is_doubted(&self, alias: &str, due: &str) -> String {
        let is_doubted = self.quoted("is_doubted");
        let equal = format!("coalesce({alias}.suspect = {alias}.claim, false)");
        format!("({equal} and {is_doubted}({alias}.suspect, {alias}.claim, {alias}.{due}))")
    }

    /// When a row's claim that is doubted now is taken over.
    pub(in crate::store) fn doubt_until(&self, alias: &str) -> String {
        format!("{}({alias}.suspect, {alias}.claim)", self.quoted("doubt_until"))
    }

    pub(in crate::store) fn quote(name: &str) -> String {
        format!("\"{}\"", name.replace('"', "\"\""))
    }

    /// The channel of the wake-ups.
    pub(crate) fn channel(&self) -> String {
        format!("{}.wake", self.schema)
    }
}

/// `name AS MATERIALIZED (query)`.
pub(in crate::store) fn cte(
    name: &'static str,
    query: impl Into<SubQueryStatement>,
) -> CommonTableExpression {
    CommonTableExpression::new().table_name(name).query(query).materialized(true).to_owned()
}

/// `WITH ctes query`, compiled.
pub(in crate::store) fn with(
    ctes: impl IntoIterator<Item = CommonTableExpression>,
    query: impl Into<SubQueryStatement>,
) -> Template {
    let mut clause = WithClause::new();
    for cte in ctes {
        clause.cte(cte);
    }
    Template::new(clause.query(query).build(PG))
}

/// `INSERT … SELECT`.
#[allow(clippy::panic)] // The columns are fixed at compile time; a unit test builds every statement.
pub(in crate::store) fn select_into(insert: &mut InsertStatement, rows: SelectStatement) {
    if let Err(error) = insert.select_from(rows) {
        panic!("an insert's columns do not match its select: {error}");
    }
}

/// A select in short.
pub(in crate::store) fn select() -> SelectStatement {
    SelectStatement::new()
}

/// A query that gives one value, as an expression.
pub(in crate::store) fn sub(query: impl Into<SubQueryStatement>) -> Expr {
    Expr::SubQuery(None, Box::new(query.into()))
}

/// `unnest` of array arguments side by side: the rows of a batch.
pub(in crate::store) fn rows_of(columns: &[(u8, &'static str)]) -> SelectStatement {
    let mut rows = select();
    for (argument, name) in columns {
        rows.expr_as(sql(format!("unnest(?{argument})")), *name);
    }
    rows
}

/// [`rows_of`] with argument 1, the queue, beside each row. As a column of the batch, and not as a literal, it leaves
/// `queue_group` only one index to be looked up by: all of its key, never the groups of a queue.
pub(in crate::store) fn groups_of(columns: &[(u8, &'static str)]) -> SelectStatement {
    rows_of(columns).expr_as(sql("?1::text"), "queue").to_owned()
}

/// A text as a literal, whatever is in it and however the session reads strings. Of the columns' collation: by itself it would
/// have that of a name, for which no index serves.
pub(in crate::store) fn literal(text: &str) -> String {
    let mut hex = String::with_capacity(text.len() * 2);
    for byte in text.bytes() {
        _ = write!(hex, "{byte:02x}");
    }
    format!("(convert_from(decode('{hex}', 'hex'), 'UTF8') collate pg_catalog.\"default\")")
}

/// The same of a name of queues or channels: in plain where it needs no care, which costs the server less to read.
pub(in crate::store) fn name(text: &str) -> String {
    let plain = |char: char| char.is_ascii_alphanumeric() || " _-.:/@#".contains(char);
    if text.chars().all(plain) { format!("'{text}'") } else { literal(text) }
}

pub(in crate::store) const PG: PostgresQueryBuilder = PostgresQueryBuilder;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_keep_their_numbers_and_quotes_are_left_alone() {
        let values = [limit(3), 1].map(|n| Value::BigUnsigned(Some(n)));
        let values = Values(values.to_vec());
        let text = r#"select '?1', "a$9" from "x?2" where a = ?2 and b = ?1 and c = ?2 limit $1 offset $2"#;
        assert_eq!(
            number(text, &values),
            r#"select '?1', "a$9" from "x?2" where a = $2 and b = $1 and c = $2 limit $3 offset 1"#
        );
    }

    #[test]
    #[should_panic(expected = "inline it")]
    fn a_literal_bound_by_mistake_is_refused() {
        number("$1", &Values(vec![Value::Bool(Some(true))]));
    }

    #[test]
    fn a_literal_is_safe_whatever_is_in_it() {
        let safe = "(convert_from(decode('275c', 'hex'), 'UTF8') collate pg_catalog.\"default\")";
        assert_eq!(literal("'\\"), safe);
        assert_eq!(name("'\\"), safe);
        assert_eq!(name("emails-2:é"), literal("emails-2:é"));
        assert_eq!(name("emails-2.eu/a_b #1"), "'emails-2.eu/a_b #1'");
    }
}
