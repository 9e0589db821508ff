//! Suites that pytest runs: moto's tests of SQS, and kombu's.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use seriatim_sqs::{Access, Config};

use crate::suites::{SUITES, client, command, installed, outcome};
use crate::support::Sqs;

/// The account that moto's tests name.
const ACCOUNT: &str = "123456789012";

/// A copy of a suite, with what makes it fit.
struct Copy {
    folder: tempfile::TempDir,
}

impl Copy {
    /// Copies a folder of an unpacked source package, and single files.
    fn of(package: &str, part: &str, files: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let package = installed().join(package);
        copy(&package.join(part), &folder.path().join(part));
        for file in files {
            std::fs::copy(package.join(file), folder.path().join(file)).unwrap();
        }
        Self { folder }
    }

    /// Replaces all of a text in a file, which must have it.
    fn replace(&self, file: &str, old: &str, new: &str) {
        let path = self.folder.path().join(file);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(old), "{file} has no {old}");
        std::fs::write(path, text.replace(old, new)).unwrap();
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to.join(entry.file_name()));
        } else {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

/// Reads the tests that are expected to fail, and why. A line has a test, two blanks and a reason.
fn expected(list: &str) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(format!("{SUITES}/{list}")).unwrap();
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, reason) = line.split_once("  ").unwrap();
            (name.to_owned(), reason.trim().to_owned())
        })
        .collect()
}

/// Returns the tests that a summary of pytest lists under a word, without their file.
fn tests_with(word: &str, output: &str) -> BTreeSet<String> {
    let lines = output.lines().filter_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
    let names = lines.filter_map(|line| Some(line.split(" - ").next()?.split_once("::")?.1));
    names.map(str::to_owned).collect()
}

/// Refuses a run in which another test fails than those of the list, or one of them passes.
fn judge(output: &str, list: &str, least: usize) {
    let passed = tests_with("PASSED", output);
    let mut failed = tests_with("FAILED", output);
    failed.extend(tests_with("ERROR", output));
    let expected = expected(list);
    eprintln!("{} tests passed, {} failed", passed.len(), failed.len());
    let unexpected: Vec<_> = failed.iter().filter(|test| !expected.contains_key(*test)).collect();
    assert!(unexpected.is_empty(), "not in {list}: {unexpected:?}\n{output}");
    let surprising: Vec<_> = expected.keys().filter(|test| !failed.contains(*test)).collect();
    assert!(surprising.is_empty(), "{list} says that these fail: {surprising:?}\n{output}");
    assert!(passed.len() >= least, "only {} tests ran\n{output}", passed.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn motos_tests_pass() {
    let Some(python) = client("moto") else { return };
    let sqs = Sqs::start_with(Config::new().access(Access::Anonymous).account(ACCOUNT), 10).await;
    let copy = Copy::of("moto-5.2.5", "tests/test_sqs", &["tests/__init__.py"]);
    let file = "tests/test_sqs/test_sqs.py";
    let address = sqs.address.replace("127.0.0.1", "localhost");
    copy.replace(file, "localhost:5000", &address);
    // Six tests misspell the attribute that they are about. AWS knows none with a blank.
    copy.replace(file, "\"VisibilityTimeout \"", "\"VisibilityTimeout\"");
    let conftest = copy.folder.path().join("tests/test_sqs/conftest.py");
    std::fs::copy(format!("{SUITES}/moto_conftest.py"), conftest).unwrap();

    let mut pytest = command(&sqs, &python);
    pytest
        .current_dir(copy.folder.path())
        .args(["-m", "pytest", "-q", "-rpfE", "--tb=short"])
        .args(["--color=no", "-W", "ignore", "-p", "no:cacheprovider"])
        // The other files need Lambda, CloudFormation, or moto's own server.
        .args(
            ["test_sqs", "test_sqs_message_attributes", "test_sqs_authentication"]
                .map(|file| format!("tests/test_sqs/{file}.py")),
        )
        .arg("tests/test_sqs/test_sqs_multiaccount.py")
        .env("SQS_ACCOUNT", ACCOUNT)
        .env("TEST_SERVER_MODE", "true")
        .env("TEST_SERVER_MODE_ENDPOINT", format!("http://{address}"))
        .env("MOTO_CALL_RESET_API", "false");
    let (_, output) = outcome(pytest).await;
    judge(&output, "moto.txt", 139);
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kombus_tests_pass() {
    let Some(python) = client("kombu") else { return };
    let sqs = Sqs::start().await;
    let copy = Copy::of("kombu-5.7.0", "t", &["setup.cfg"]);
    let (_, port) = sqs.address.rsplit_once(':').unwrap();
    let mut pytest = command(&sqs, &python);
    pytest
        .current_dir(copy.folder.path())
        .args(["-m", "pytest", "-q", "-n", "4", "-rpfE", "--tb=short", "--color=no"])
        .args(["-W", "ignore", "-p", "no:cacheprovider", "t/integration/test_sqs.py"])
        .env_remove("AWS_ENDPOINT_URL_SQS")
        .env("SQS_HOST", "localhost")
        .env("SQS_PORT", port);
    let (_, output) = outcome(pytest).await;
    judge(&output, "kombu.txt", 39);
    sqs.end().await;
}
