//! Tables that are as wide as the terminal. Long text that does not fit is cut with `…`; ids,
//! states and times are never cut or broken.

use std::env;

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Row, Width, presets};

use crate::failure::Failure;
use crate::output::line;
use crate::output::text::visible;

/// The most lines of one row on a terminal.
const ROW_LINES: usize = 3;
/// So much of a long text is shown beside others; where there is less room, each row becomes a
/// block of lines.
const LEAST: usize = 10;
/// Between two columns.
const GAP: usize = 2;

/// A table under construction.
pub(crate) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

struct Column {
    title: String,
    /// Numbers are aligned to the right.
    is_number: bool,
    /// Long text: it may be cut.
    is_long: bool,
}

impl Table {
    /// Returns a table with these columns. `#` before a title aligns its column to the right, `~`
    /// says that its text may be long.
    pub(crate) fn new(columns: &[&str]) -> Self {
        let column = |title: &&str| Column {
            title: title.trim_start_matches(['#', '~']).to_uppercase(),
            is_number: title.starts_with('#'),
            is_long: title.starts_with('~'),
        };
        Self { columns: columns.iter().map(column).collect(), rows: Vec::new() }
    }

    /// Adds a row. Control characters are shown escaped.
    pub(crate) fn row<T: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.rows.push(cells.into_iter().map(|cell| visible(cell.as_ref())).collect());
    }

    /// Prints the table.
    pub(crate) fn print(&self) -> Result<(), Failure> {
        let width = forced_width().or_else(|| comfy_table::Table::new().width());
        match width {
            Some(width) if self.least_width() > width.into() => self.print_blocks(width.into()),
            width => self.print_rows(width),
        }
    }

    /// Returns the width that it takes to show every id whole, and something of long text.
    fn least_width(&self) -> usize {
        (0..self.columns.len()).map(|n| self.least_width_of(n)).sum()
    }

    /// Returns the same of one column, with the gap behind it.
    fn least_width_of(&self, n: usize) -> usize {
        let widest = |of: &dyn Fn(&str) -> usize| {
            self.rows.iter().filter_map(|row| row.get(n)).map(|cell| of(cell)).max().unwrap_or(0)
        };
        let Some(column) = self.columns.get(n) else { return 0 };
        let content = widest(&|cell| cell.chars().count());
        let content =
            if column.is_long { content.min(LEAST.max(widest(&longest_number))) } else { content };
        content.max(column.title.chars().count()) + GAP
    }

    fn print_rows(&self, width: Option<u16>) -> Result<(), Failure> {
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING).set_truncation_indicator("…");
        table.set_content_arrangement(match width {
            Some(_) => ContentArrangement::Dynamic,
            None => ContentArrangement::Disabled,
        });
        if let Some(width) = width {
            table.set_width(width);
        }
        table.set_header(self.columns.iter().map(|column| &column.title));
        for (n, (of, column)) in self.columns.iter().zip(table.column_iter_mut()).enumerate() {
            column.set_padding((0, 2));
            if of.is_number {
                column.set_cell_alignment(CellAlignment::Right);
            }
            let least = u16::try_from(self.least_width_of(n)).unwrap_or(u16::MAX);
            column.set_constraint(if of.is_long {
                ColumnConstraint::LowerBoundary(Width::Fixed(least))
            } else {
                ColumnConstraint::ContentWidth
            });
        }
        for cells in &self.rows {
            let mut row = Row::from(cells);
            if width.is_some() {
                row.max_height(ROW_LINES);
            }
            table.add_row(row);
        }
        table.lines().try_for_each(|text| line(text.trim_end()))
    }

    /// Prints each row as a block, a line for each of its cells that has something.
    fn print_blocks(&self, width: usize) -> Result<(), Failure> {
        let titles = self.columns.iter().map(|column| column.title.chars().count()).max();
        let titles = titles.unwrap_or(0);
        let room = width.saturating_sub(titles + GAP).max(LEAST);
        for (n, row) in self.rows.iter().enumerate() {
            if n > 0 {
                line("")?;
            }
            for (column, cell) in self.columns.iter().zip(row).filter(|(_, cell)| !cell.is_empty())
            {
                let shown = if column.is_long { fitted(cell, room) } else { vec![cell.clone()] };
                for (n, part) in shown.iter().enumerate() {
                    let title = if n == 0 { &*column.title } else { "" };
                    line(&format!("{title:<titles$}  {part}"))?;
                }
            }
        }
        Ok(())
    }
}

/// Returns the length of the longest number in a text.
fn longest_number(text: &str) -> usize {
    text.split(|c: char| !c.is_ascii_digit()).map(str::len).max().unwrap_or(0)
}

/// Returns a text in lines of a width, [`ROW_LINES`] at most; what is left is cut with `…`.
fn fitted(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rest: Vec<char> = text.chars().collect();
    while rest.len() > width && lines.len() + 1 < ROW_LINES {
        // At a space, unless most of the line would be empty.
        let space = rest[..=width].iter().rposition(|c| *c == ' ').filter(|at| *at > width / 2);
        // Never in a number: it may be an id.
        let in_number = |at: &usize| !(rest[at - 1].is_ascii_digit() && rest[*at].is_ascii_digit());
        let end = space.or_else(|| (width..rest.len()).find(in_number)).unwrap_or(rest.len());
        lines.push(rest[..end].iter().collect());
        rest.drain(..space.map_or(end, |at| at + 1));
    }
    if rest.len() > width {
        rest.truncate(width.saturating_sub(1));
        rest.push('…');
    }
    lines.push(rest.into_iter().collect());
    lines
}

/// Returns the width that `COLUMNS` asks for. Else that of the terminal is taken, if there is one.
fn forced_width() -> Option<u16> {
    env::var("COLUMNS").ok()?.parse().ok().filter(|width| *width >= 20)
}

#[cfg(test)]
mod tests {
    use super::fitted;

    #[test]
    fn long_text_is_broken_at_spaces_and_cut_with_a_sign() {
        assert_eq!(fitted("short", 10), ["short"]);
        assert_eq!(fitted("the bank is closed today", 10), ["the bank", "is closed", "today"]);
        assert_eq!(
            fitted("by job 9000000000000000001, now", 10),
            ["by job", "9000000000000000001", ", now"]
        );
        assert_eq!(fitted(&"x".repeat(40), 10), ["xxxxxxxxxx", "xxxxxxxxxx", "xxxxxxxxx…"]);
    }
}
