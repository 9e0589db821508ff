//! Each verb has one name in Rust, in SQL, on the command line and in JSON: the table of the
//! guide's page about operating is complete, and true.

use std::collections::BTreeSet;
use std::{fs, path::Path};

use serde_json::json;
use seriatim::admin::Change;

use crate::support::{Cli, DONE};

/// The words in backticks of a cell, up to their arguments.
fn names(cell: &str) -> Vec<String> {
    let quoted = cell.split('`').skip(1).step_by(2);
    quoted.map(|name| name.split('(').next().unwrap().to_owned()).collect()
}

/// The text of all files of a folder of the library.
fn text_of(folder: &str) -> String {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(folder);
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    files.filter(|path| path.is_file()).map(|path| fs::read_to_string(path).unwrap()).collect()
}

/// The words that follow a prefix, up to the next bracket.
fn words_after(text: &str, prefix: &str) -> BTreeSet<String> {
    let words = text.split(prefix).skip(1).map(|rest| rest.split(['(', '<']).next().unwrap());
    words.map(str::to_owned).collect()
}

#[tokio::test]
async fn each_verb_has_one_name_and_is_in_the_guide() {
    let guide = text_of("docs/guide");
    let (_, table) = guide.split_once("| Rust | SQL | `seriatim` | `action` |").unwrap();
    let rows: Vec<Vec<_>> = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.split(" | ").map(names).collect())
        .collect();
    let column = |n: usize| -> BTreeSet<String> {
        rows.iter().flat_map(|row| row[n].iter().cloned()).collect()
    };
    assert!(rows.len() > 20, "{rows:?}");

    // All methods of an operator are there, but for those that take any change.
    let mut methods = words_after(&text_of("src/client/operator"), "pub async fn ");
    methods.extend(words_after(&text_of("src/client/operator/act"), "pub async fn "));
    for general in ["apply", "preview", "doubt_about"] {
        assert!(methods.remove(general), "{general}");
    }
    assert_eq!(column(0), methods);

    let functions = words_after(&text_of("sql/functions"), "create or replace function {schema}.");
    let functions: BTreeSet<_> = functions
        .into_iter()
        .chain(words_after(&text_of("sql/functions"), "create or replace function "))
        .collect();
    let unknown: Vec<_> = column(1).difference(&functions).cloned().collect();
    assert!(unknown.is_empty(), "{unknown:?}");

    // The error of an unknown change names all changes. `set_schedule` is none of them.
    let known = serde_json::from_value::<Change>(json!({"action": "dance"})).unwrap_err();
    let mut known: BTreeSet<_> = names(&known.to_string()).into_iter().collect();
    assert!(known.remove("dance") && known.insert("set_schedule".into()), "{known:?}");
    assert_eq!(column(3), known);

    // In each place the name begins with the same verb.
    let verb = |name: &str| name.split(['_', '-']).next().unwrap().to_owned();
    let cli = Cli::new().await;
    for row in &rows {
        let verbs: BTreeSet<_> = row[0].iter().map(|name| verb(name)).collect();
        for name in row[1].iter().chain(&row[3]) {
            assert!(verbs.contains(&verb(name)), "{name} of {verbs:?}");
        }
        for command in &row[2] {
            let words: Vec<_> = command.split(' ').collect();
            assert!(words.iter().any(|word| verbs.contains(&verb(word))), "{command}: {verbs:?}");
            let (flags, words): (Vec<_>, Vec<_>) =
                words.into_iter().partition(|word| word.starts_with("--"));
            let help = cli.ends(DONE, &[&words[..], &["--help"]].concat()).await.out;
            assert!(help.contains(&format!("seriatim {}", words.join(" "))), "{help}");
            assert!(flags.iter().all(|flag| help.contains(flag)), "{command}: {help}");
        }
    }
    cli.remove().await;
}
