//! The figures: a table for readers, lines of JSON for machines.

use std::fmt::Display;
use std::fs::File;
use std::io::{IsTerminal, Write, stderr};
use std::path::Path;

use indicatif::ProgressBar;
use serde_json::{Map, Value, json};

use crate::Result;
use crate::figures::short;
use crate::limit::Limits;
use crate::settings::Way;
use crate::table::table;

/// The limit that a rate is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Basis {
    One,
    Eight,
    Batches,
}

impl Basis {
    fn of(self, limits: Limits) -> f64 {
        match self {
            Self::One => limits.one,
            Self::Eight => limits.eight,
            Self::Batches => limits.batches,
        }
    }
}

/// One line of a table.
#[derive(Debug)]
#[must_use = "a row is to be reported"]
pub(crate) struct Row {
    scenario: &'static str,
    said: Vec<(&'static str, String)>,
    figures: Vec<(&'static str, f64)>,
    rate: Option<(f64, Basis)>,
}

impl Row {
    pub(crate) fn new(scenario: &'static str) -> Self {
        Self { scenario, said: Vec::new(), figures: Vec::new(), rate: None }
    }

    pub(crate) fn say(mut self, name: &'static str, value: impl Display) -> Self {
        self.said.push((name, value.to_string()));
        self
    }

    pub(crate) fn way(mut self, way: Way) -> Self {
        self.said.extend(way.said());
        self
    }

    pub(crate) fn figure(mut self, name: &'static str, value: f64) -> Self {
        self.figures.push((name, value));
        self
    }

    /// Adds a figure that is compared with the limit.
    pub(crate) fn rate(mut self, name: &'static str, value: f64, basis: Basis) -> Self {
        self.rate = Some((value, basis));
        self.figure(name, value)
    }
}

pub(crate) struct Report {
    json: Option<File>,
    spinner: ProgressBar,
    /// Rows of the running scenario.
    rows: Vec<Row>,
}

impl Report {
    pub(crate) fn new(json: Option<&Path>) -> Result<Self> {
        let json = json.map(|path| File::options().append(true).create(true).open(path));
        Ok(Self { json: json.transpose()?, spinner: ProgressBar::new_spinner(), rows: Vec::new() })
    }

    /// Prints the current step on standard error.
    pub(crate) fn step(&self, what: &str) {
        if stderr().is_terminal() {
            self.spinner.set_message(what.to_owned());
            self.spinner.tick();
        } else {
            eprintln!("{what}");
        }
    }

    /// Prints the machine and the settings, once, before all rows.
    pub(crate) fn about(&mut self, about: &Value) -> Result<()> {
        if let Value::Object(about) = about {
            for (name, value) in about {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                println!("{name:<16}{text}");
            }
        }
        self.line(&json!({ "about": about }))
    }

    pub(crate) fn row(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Prints the rows of a scenario, with the limit measured around it.
    pub(crate) fn close(&mut self, name: &str, limits: Limits) -> Result<()> {
        self.spinner.finish_and_clear();
        self.spinner = ProgressBar::new_spinner();
        println!("\n## {name}\n");
        println!(
            "limit, rows/s: {} with 1 client, {} with 8, {} in batches of 100\n",
            short(limits.one),
            short(limits.eight),
            short(limits.batches)
        );
        let limit = json!({
            "rows/s, 1 client": limits.one,
            "rows/s, 8 clients": limits.eight,
            "rows/s, 8 clients, batches of 100": limits.batches,
        });
        let rows = std::mem::take(&mut self.rows);
        if rows.is_empty() {
            self.line(&json!({ "scenario": name, "limit": limit }))?;
        }
        let mut lines = Vec::new();
        for mut row in rows {
            if let Some((rate, basis)) = row.rate {
                row.figures.push(("of limit", rate / basis.of(limits)));
            }
            self.line(&json!({
                "scenario": row.scenario,
                "params": row.said.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect::<Map<_, _>>(),
                "figures": row.figures.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect::<Map<_, _>>(),
                "limit": limit,
            }))?;
            let said = row.said.into_iter();
            let figures = row.figures.into_iter().map(|(name, value)| (name, short(value)));
            lines.push(said.chain(figures).collect::<Vec<_>>());
        }
        print!("{}", table(&lines));
        Ok(())
    }

    /// Writes a line into the file alone.
    pub(crate) fn line(&mut self, value: &Value) -> Result<()> {
        if let Some(file) = &mut self.json {
            writeln!(file, "{value}")?;
        }
        Ok(())
    }
}
