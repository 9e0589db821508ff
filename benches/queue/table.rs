//! Figures as a table.

/// Returns lines of the same columns, in Markdown.
pub(crate) fn table(lines: &[Vec<(&'static str, String)>]) -> String {
    let Some(first) = lines.first() else {
        return String::new();
    };
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.1.len());
        cells.max().unwrap_or(0).max(first[column].0.len())
    };
    let widths: Vec<usize> = (0..first.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let cells = cells.iter().zip(&widths).map(|(cell, width)| format!(" {cell:>width$} |"));
        format!("|{}\n", cells.collect::<String>())
    };
    let rule = widths.iter().map(|width| format!("{}:|", "-".repeat(width + 1)));
    let mut text = line(first.iter().map(|cell| cell.0).collect());
    text.push('|');
    text.extend(rule);
    text.push('\n');
    for cells in lines {
        text.push_str(&line(cells.iter().map(|cell| cell.1.as_str()).collect()));
    }
    text
}
