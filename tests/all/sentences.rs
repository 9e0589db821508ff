//! Comments and documents are in plain English: no sentence begins with a genitive or a pronoun
//! whose noun comes later, and no line of a comment is over 100 columns.

use std::fs;
use std::path::PathBuf;

use crate::documents::{documents, root};
use crate::layers::files;

const OPENINGS: [&str; 5] = ["Of", "What", "Those", "That", "Whose"];

/// The folders with comments and documents, beside the documents of the root. Migrations that have
/// run stay as they are.
const FOLDERS: [&str; 7] = ["src", "sql", "tests", "benches", "examples", "crates", "docs"];

/// Returns the text of a line that is a comment, or prose; `None` ends a paragraph.
fn text_of<'l>(line: &'l str, extension: &str, fenced: &mut bool) -> Option<&'l str> {
    let line = line.trim();
    let text = match extension {
        "rs" => line.strip_prefix("//")?.trim_start_matches(['/', '!']),
        "sql" => line.strip_prefix("--")?,
        _ => {
            let fence = line.starts_with("```");
            *fenced ^= fence;
            let apart = line.starts_with(['#', '|']);
            (!fence && !*fenced && !apart).then(|| line.trim_start_matches(['*', '-']))?
        }
    };
    Some(text.trim()).filter(|text| !text.is_empty())
}

/// The paragraphs of a file, each with the number of its first line.
fn paragraphs(file: &str, extension: &str) -> Vec<(usize, String)> {
    let mut fenced = false;
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut in_one = false;
    for (number, line) in (1..).zip(file.lines()) {
        let text = text_of(line, extension, &mut fenced);
        match (text, found.last_mut().filter(|_| in_one)) {
            (Some(text), Some((_, paragraph))) => {
                paragraph.push(' ');
                paragraph.push_str(text);
            }
            (Some(text), None) => found.push((number, text.to_owned())),
            (None, _) => {}
        }
        in_one = text.is_some();
    }
    found
}

fn sentences(paragraph: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = paragraph;
    let is_end = |text: &str, at: usize| {
        text[at..].starts_with(['.', '!', '?']) && text[at + 1..].starts_with(' ')
    };
    while let Some((end, _)) = rest.char_indices().find(|&(at, _)| is_end(rest, at)) {
        found.push(&rest[..=end]);
        rest = rest[end + 1..].trim_start();
    }
    found.push(rest);
    found
}

#[test]
fn no_sentence_opens_with_a_genitive_or_a_pronoun() {
    let of_root = documents().into_iter().filter(|path| !path.contains('/'));
    let mut paths: Vec<PathBuf> = of_root.map(|path| root().join(path)).collect();
    for folder in FOLDERS {
        files(&root().join(folder), &["rs", "sql", "md"], &mut paths);
    }
    let mut wrong = Vec::new();
    for file in paths {
        let extension = file.extension().and_then(|it| it.to_str()).unwrap_or_default();
        for (line, paragraph) in paragraphs(&fs::read_to_string(&file).unwrap(), extension) {
            for sentence in sentences(&paragraph) {
                let opens = OPENINGS.iter().any(|word| {
                    sentence.strip_prefix(word).is_some_and(|rest| rest.starts_with([' ', ',']))
                });
                if opens && !sentence.ends_with('?') {
                    wrong.push(format!("{}:{line}: {sentence}", file.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} sentences:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn comments_are_within_100_columns() {
    let mut paths = Vec::new();
    for folder in FOLDERS {
        files(&root().join(folder), &["rs", "sql"], &mut paths);
    }
    // A document, which is as wide as those beside it.
    paths.retain(|path| !path.ends_with("docs/roles.sql"));
    let mut wide = Vec::new();
    for file in paths {
        let text = fs::read_to_string(&file).unwrap();
        let mark = if file.extension().is_some_and(|it| it == "sql") { "--" } else { "//" };
        let is_wide =
            |line: &str| line.trim_start().starts_with(mark) && line.chars().count() > 100;
        let lines = (1..).zip(text.lines()).filter(|(_, line)| is_wide(line));
        wide.extend(lines.map(|(number, _): (usize, _)| format!("{}:{number}", file.display())));
    }
    assert!(wide.is_empty(), "{wide:#?}");
}
