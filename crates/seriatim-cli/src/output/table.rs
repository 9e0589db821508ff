//! Tables that are as wide as the terminal. What does not fit is cut with `…`.

use std::env;

use comfy_table::{CellAlignment, ContentArrangement, Row, presets};

use crate::failure::Failure;
use crate::output::line;
use crate::output::text::visible;

/// The most lines of one row on a terminal.
const ROW_LINES: usize = 3;

/// A table under construction.
pub(crate) struct Table {
    table: comfy_table::Table,
    /// The output has a width that rows are fitted to.
    fitted: bool,
}

impl Table {
    /// Returns a table with these columns. `#` before a title aligns its column to the right.
    pub(crate) fn new(columns: &[&str]) -> Self {
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING).set_truncation_indicator("…");
        if let Some(width) = forced_width() {
            table.set_width(width);
        }
        let fitted = table.width().is_some();
        table.set_content_arrangement(if fitted {
            ContentArrangement::Dynamic
        } else {
            ContentArrangement::Disabled
        });
        table.set_header(columns.iter().map(|title| title.trim_start_matches('#').to_uppercase()));
        for (title, column) in columns.iter().zip(table.column_iter_mut()) {
            column.set_padding((0, 2));
            if title.starts_with('#') {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        Self { table, fitted }
    }

    /// Adds a row. Control characters are shown escaped.
    pub(crate) fn row<T: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = T>) {
        let mut row = Row::from(cells.into_iter().map(|cell| visible(cell.as_ref())));
        if self.fitted {
            row.max_height(ROW_LINES);
        }
        self.table.add_row(row);
    }

    /// Prints the table.
    pub(crate) fn print(&self) -> Result<(), Failure> {
        self.table.lines().try_for_each(|text| line(text.trim_end()))
    }
}

/// Returns the width that `COLUMNS` asks for. Else that of the terminal is taken, if there is one.
fn forced_width() -> Option<u16> {
    env::var("COLUMNS").ok()?.parse().ok().filter(|width| *width >= 20)
}
