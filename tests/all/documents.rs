//! The documents: the tests that they name are there, their links lead somewhere, and the SQL of
//! the README runs.

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;
use seriatim::{Client, Processor};
use sqlx::{AssertSqlSafe, Row};

use crate::support::{by_hand, database, handler, job_when, queue, value};

mod moving;
mod settings;

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The path of every test below a folder: its folders, its file and its name.
fn tests_below(folder: &Path, path: &str, found: &mut HashSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap().path();
        let stem = entry.file_stem().unwrap().to_str().unwrap();
        let path = if stem == "mod" { path.to_owned() } else { format!("{path}{stem}::") };
        if entry.is_dir() {
            tests_below(&entry, &path, found);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            let mut is_test = false;
            for line in read(&entry).lines() {
                is_test |= line.starts_with("#[tokio::test") || line.starts_with("#[test]");
                let name = line.split_once("fn ").and_then(|(_, rest)| rest.split_once('('));
                if let Some((name, _)) = name.filter(|_| is_test) {
                    found.insert(format!("{path}{name}"));
                    is_test = false;
                }
            }
        }
    }
}

/// The path of every test as `cargo test` shows it, with `model::` before those of the model.
fn tests() -> HashSet<String> {
    let mut found = HashSet::new();
    let folders = [
        ("tests/all", ""),
        ("src", ""),
        ("tests/model", "model::"),
        ("benches/queue", ""),
        ("crates/seriatim-sqs/tests", ""),
    ];
    for (folder, path) in folders {
        tests_below(&root().join(folder), path, &mut found);
    }
    found
}

/// Whether a path, or its end, is `named`: `p1_order::name` names `promises::p1_order::name`.
fn ends_with(path: &str, named: &str) -> bool {
    path.strip_suffix(named).is_some_and(|rest| rest.is_empty() || rest.ends_with("::"))
}

/// Whether a path, or its end, begins with `named`: `p1_order::` and `p1_` name all tests of that
/// file.
fn contains(path: &str, named: &str) -> bool {
    path.starts_with(named) || path.contains(&format!("::{named}"))
}

/// All Markdown: beside `Cargo.toml`, in the book, and the model's.
pub fn documents() -> Vec<String> {
    let mut found = vec![String::from("tests/model/README.md")];
    let mut folders = vec![root().to_owned(), root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && folder != root() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    found
}

/// The lines outside of code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    text.lines().filter(move |line| {
        let fence = line.starts_with("```");
        fenced ^= fence;
        !fence && !fenced
    })
}

/// The words in backticks outside of code blocks.
fn quoted(text: &str) -> Vec<String> {
    prose(text).flat_map(|line| line.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
}

/// The places that a link can lead to within a document: its headings, as GitHub and mdBook name
/// them, and its anchors.
fn anchors(text: &str) -> HashSet<String> {
    let slug = |heading: &str| -> String {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    let headings = prose(text).filter(|line| line.starts_with('#')).map(slug);
    let ids = text.split("<a id=\"").skip(1).filter_map(|rest| rest.split('"').next());
    headings.chain(ids.map(str::to_owned)).collect()
}

/// Whether it is meant as the name of a test: of a file of tests, or too long for anything else.
fn means_a_test(word: &str, files: &HashSet<String>) -> bool {
    let lower =
        word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_:*".contains(c));
    let of_file = word
        .rsplit_once("::")
        .is_some_and(|(named, _)| files.iter().any(|file| ends_with(file, named)));
    // `operations::metrics` checks the names of metrics.
    let metric = word.starts_with("seriatim_");
    lower && !metric && (of_file || word.matches('_').count() >= 4)
}

#[test]
fn every_test_that_a_document_names_is_there() {
    let tests = tests();
    let files: HashSet<String> =
        tests.iter().map(|test| test.rsplit_once("::").unwrap().0.to_owned()).collect();
    let mut missing = Vec::new();
    let mut named = 0;
    for document in documents() {
        for word in quoted(&read(&document)) {
            if !means_a_test(&word, &files) {
                continue;
            }
            named += 1;
            let there = match word.strip_suffix('*') {
                Some(named) => tests.iter().any(|test| contains(test, named)),
                None => tests.iter().any(|test| ends_with(test, &word)),
            };
            if !there {
                missing.push(format!("{document}: {word}"));
            }
        }
    }
    assert_eq!(missing, [""; 0]);
    assert!(named > 100, "only {named} names were found");
}

#[test]
fn every_case_that_a_document_names_is_there() {
    let cases = read("tests/all/sql/sql_functions/cases.rs");
    let mut named = 0;
    for document in documents() {
        let text = read(&document);
        for after in text.split("`sql_functions`, ").skip(1) {
            // Up to the end of its cell. The names stand in quotes.
            let cell = after.split(['|', '\n', ';']).next().unwrap();
            for case in cell.split('"').skip(1).step_by(2) {
                assert!(cases.contains(&format!("\"{case}\",\n")), "{document}: no case {case:?}");
                named += 1;
            }
        }
    }
    assert!(named > 10, "only {named} cases were found");
}

#[test]
fn every_file_that_a_document_names_is_there() {
    for document in documents() {
        for path in quoted(&read(&document)) {
            let names_a_file =
                ["src/", "tests/", "migrations/", "sql/"].iter().any(|at| path.starts_with(at));
            if names_a_file && !path.contains(['*', ' ', '…', '<']) {
                assert!(root().join(&path).exists(), "{document} names {path}");
            }
        }
    }
}

#[test]
fn every_link_leads_somewhere() {
    let book = root().join("docs").canonicalize().unwrap();
    for document in documents() {
        let text = read(&document);
        let folder = root().join(&document).parent().unwrap().to_owned();
        let links = prose(&text).flat_map(|line| line.split("](").skip(1));
        for link in links.map(|rest| rest.split(')').next().unwrap()) {
            if link.contains("://") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { root().join(&document) } else { folder.join(path) };
            let Ok(target) = target.canonicalize() else {
                panic!("{document} links to {link}");
            };
            let stays = !document.starts_with("docs/") || target.starts_with(&book);
            assert!(stays, "{document} links to {link}, which is not in the book");
            let there = anchor.is_empty() || anchors(&read(target)).contains(anchor);
            assert!(there, "{document} links to {link}, which has no such place");
        }
    }
}

#[test]
fn the_book_has_every_page() {
    let summary = read("docs/SUMMARY.md");
    for document in documents() {
        let Some(page) = document.strip_prefix("docs/") else { continue };
        let listed = page == "SUMMARY.md" || summary.contains(&format!("]({page})"));
        assert!(listed, "docs/SUMMARY.md has no {page}");
    }
}

/// Without it `aws` may call AWS, and make the queue there.
#[test]
fn every_aws_command_of_a_document_names_the_endpoint() {
    let is_command = |line: &str| {
        ["aws sqs", "aws -"].iter().any(|aws| line.starts_with(aws)) || line.contains("`aws ")
    };
    for document in documents() {
        for line in read(&document).lines().filter(|line| is_command(line)) {
            let is_name = line.contains("`aws`");
            assert!(is_name || line.contains("aws --endpoint-url "), "{document}: {line}");
        }
    }
}

#[test]
fn no_document_names_the_host_of_a_registry() {
    let hosts = [["crates", ".io"], ["docs", ".rs"], ["npmjs", ".com"], ["pypi", ".org"]];
    for document in documents() {
        let text = read(&document);
        assert!(!hosts.iter().any(|host| text.contains(&host.concat())), "{document}");
    }
}

/// Returns the first program of a page, which is an example but for its first line, and what it
/// prints. cargo builds the examples before it runs the tests, beside their folder.
fn first_program(page: &str, example: &str) -> (Command, String) {
    let page = read(page);
    let program = &blocks(&page, "rust,no_run")[0];
    let file = read(format!("examples/{example}.rs"));
    let (_, pasted) = file.split_once("\n\n").unwrap();
    assert_eq!(program.trim(), pasted.trim());
    let folder = std::env::current_exe().unwrap().parent().unwrap().with_file_name("examples");
    (Command::new(folder.join(example)), blocks(&page, "text")[0].trim().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_program_of_the_guide_runs_as_pasted() {
    let (mut example, prints) = first_program("docs/guide/first-job.md", "first_job");
    let database = database().await;
    let output = example.env("DATABASE_URL", database.url()).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
    assert_eq!(said.trim(), prints);
    database.remove().await.unwrap();
}

/// It is a service, and ends at a signal.
#[tokio::test(flavor = "multi_thread")]
async fn the_program_of_the_readme_runs_as_pasted() {
    let (mut example, prints) = first_program("README.md", "in_order");
    let database = database().await;
    example.env("DATABASE_URL", database.url()).stdout(Stdio::piped());
    let mut child = example.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let said: Vec<String> = lines.take(prints.lines().count()).map(Result::unwrap).collect();
    assert_eq!(said.join("\n"), prints);
    let stop = Command::new("kill").arg(child.id().to_string()).status().unwrap();
    assert!(stop.success() && child.wait().unwrap().success());
    database.remove().await.unwrap();
}

/// The code blocks of a language.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let fence = format!("\n```{language}\n");
    let blocks = text.split(&fence).skip(1);
    blocks.map(|block| block.split("\n```").next().unwrap().to_owned()).collect()
}

/// The block after `From `sql/functions/…`:` is a part of that file, but for its indent.
#[test]
fn the_sql_of_the_protocol_is_what_runs() {
    let text = read("docs/protocol.md");
    let mut quotes = 0;
    for (_, quote) in text.match_indices("From `sql/functions/").map(|(at, _)| (at, &text[at..])) {
        let file = quote.split('`').nth(1).unwrap();
        let quote = &blocks(quote, "sql")[0];
        let plain = |text: &str| text.lines().map(str::trim).collect::<Vec<_>>().join("\n");
        assert!(plain(&read(file)).contains(plain(quote).trim()), "{file} has changed");
        quotes += 1;
    }
    assert_eq!(quotes, 1);
}

/// As psql would run them, with the last receipt as a variable.
#[tokio::test(flavor = "multi_thread")]
async fn the_sql_of_the_readme_does_what_it_says() {
    let database = database().await;
    let pool = database.pool();
    by_hand(
        pool,
        "create table account (id int primary key, cents bigint not null default 0);
         insert into account (id) values (42);
         create table orders (id int primary key, customer text not null)",
    )
    .await;
    let blocks = blocks(&read("README.md"), "sql");
    assert_eq!(blocks.len(), 2, "{blocks:?}");

    let mut conn = database.connect().await.unwrap();
    let mut receipt = String::new();
    let mut said = Vec::new();
    for statement in blocks[0].split(';') {
        let lines = statement.lines().map(|line| line.split(" --").next().unwrap());
        let statement = lines.filter(|line| !line.starts_with("--")).collect::<Vec<_>>().join("\n");
        if statement.trim().is_empty() {
            continue;
        }
        let statement = statement.replace(":'receipt'", &format!("'{receipt}'"));
        for row in sqlx::raw_sql(AssertSqlSafe(statement)).fetch_all(&mut conn).await.unwrap() {
            if let Ok(came) = row.try_get("receipt") {
                receipt = came;
            } else if let Ok(word) = row.try_get::<String, _>(0) {
                said.push(word);
            }
        }
    }
    assert_eq!(said, ["done", "done"], "extend, and ack");
    let job = value::<i64>(pool, "select id from seriatim.job").await;
    job_when(pool, job, |job| job.status == seriatim::JobStatus::Succeeded).await;
    assert_eq!(value::<i64>(pool, "select cents from account").await, 1500);

    by_hand(pool, &blocks[1]).await;
    by_hand(pool, "insert into orders values (1, 'ann'), (2, 'ann')").await;
    let run = handler(async |job, data| Ok(json!([job.group(), data])));
    let running = Processor::builder(pool.clone()).queue(queue("orders"), run).build().unwrap();
    let _running = running.start().await.unwrap();
    let last = value::<i64>(pool, "select max(id) from seriatim.job").await;
    let done = job_when(pool, last, |job| job.status.is_final()).await;
    assert_eq!(done.result, Some(json!(["ann", { "id": 2, "customer": "ann" }])));
    assert_eq!(Client::default().counts(pool, "orders").await.unwrap().succeeded, 2);
}

/// As psql would run them, with the batch as a variable.
#[tokio::test]
async fn the_sql_of_the_guide_to_batches_makes_one_follow_up() {
    let database = database().await;
    let pool = database.pool();
    let blocks = blocks(&read("docs/guide/batches.md"), "sql");
    assert_eq!(blocks.len(), 1, "{blocks:?}");
    let (open, others) = blocks[0].split_once(" \\gset").unwrap();
    let batch = value::<i64>(pool, open.to_owned()).await;
    by_hand(pool, others.replace(":batch", &batch.to_string())).await;
    by_hand(pool, "select seriatim.ack(r.receipt) from seriatim.receive('statements') r").await;
    assert_eq!(Client::default().end_batches(pool).await.unwrap(), 1);
    let follow_up =
        "select count(*) from seriatim.job where queue = 'totals' and group_id = 'totals'";
    assert_eq!(value::<i64>(pool, follow_up).await, 1);
}
