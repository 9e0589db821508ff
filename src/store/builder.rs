//! sea-query as a compiler of statements that have variants: built once per schema, then only
//! bound.
//!
//! Building and rendering costs as much as a tenth of a claim's round trip. Literals that a partial
//! index or a plan depends on are inlined: a bound one loses the index at the sixth execution.

use std::fmt::Write as _;

use sea_query::{
    CommonTableExpression, Expr, InsertStatement, PostgresQueryBuilder, SelectStatement,
    SubQueryStatement, Value, Values, WithClause,
};

/// `LIMIT` takes only a number: this much plus n stands for argument n.
const LIMIT: u64 = 9_000_000_000;

/// The `LIMIT` that argument `n` gives.
pub(crate) fn limit(n: u64) -> u64 {
    LIMIT + n
}

/// A piece of SQL in which `?n` stands for argument n.
pub(crate) fn sql(text: impl Into<std::borrow::Cow<'static, str>>) -> Expr {
    Expr::cust(text)
}

/// The text of what a sea-query statement's `build(PG)` gave.
pub(crate) fn render((rendered, values): (String, Values)) -> String {
    number(&rendered, &values)
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

/// `name AS MATERIALIZED (query)`.
pub(crate) fn cte(
    name: &'static str,
    query: impl Into<SubQueryStatement>,
) -> CommonTableExpression {
    CommonTableExpression::new().table_name(name).query(query).materialized(true).to_owned()
}

/// `WITH ctes query`, compiled.
pub(crate) fn with(
    ctes: impl IntoIterator<Item = CommonTableExpression>,
    query: impl Into<SubQueryStatement>,
) -> String {
    let mut clause = WithClause::new();
    for cte in ctes {
        clause.cte(cte);
    }
    render(clause.query(query).build(PG))
}

/// `INSERT … SELECT`.
#[allow(clippy::panic)] // The columns are fixed at compile time; a unit test builds every statement.
pub(crate) fn select_into(insert: &mut InsertStatement, rows: SelectStatement) {
    if let Err(error) = insert.select_from(rows) {
        panic!("an insert's columns do not match its select: {error}");
    }
}

/// An empty select.
pub(crate) fn select() -> SelectStatement {
    SelectStatement::new()
}

/// A query that gives one value, as an expression.
pub(crate) fn sub(query: impl Into<SubQueryStatement>) -> Expr {
    Expr::SubQuery(None, Box::new(query.into()))
}

pub(crate) const PG: PostgresQueryBuilder = PostgresQueryBuilder;

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
}
