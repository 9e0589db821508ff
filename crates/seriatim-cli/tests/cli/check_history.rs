//! `seriatim check-history`.

use tokio::process::Command;

use crate::support::{DONE, USAGE, ran};

#[tokio::test]
async fn a_history_is_checked_without_a_database() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("history.jsonl");
    let file = file.to_str().unwrap();
    let check = async |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_seriatim"));
        command.env_remove("DATABASE_URL").args(args).arg("check-history").arg(file);
        ran(command.output().await.unwrap())
    };
    let missing = check(&[]).await;
    assert_eq!(missing.code, USAGE, "{}", missing.err);
    assert!(missing.err.contains("cannot be read"), "{}", missing.err);

    // Nothing is kept by a record of nothing.
    std::fs::write(file, "\n").unwrap();
    let empty = check(&[]).await;
    assert_eq!(empty.code, USAGE, "{}", empty.out);
    assert!(empty.err.contains("no event"), "{}", empty.err);

    let document = include_str!("../../../../docs/history.md");
    let good = document.split("```json\n").nth(1).unwrap().split("```").next().unwrap();
    std::fs::write(file, good).unwrap();
    let kept = check(&[]).await;
    assert_eq!(kept.code, DONE, "{}", kept.out);
    let none =
        "no violation of P1, P2, P3, P4, P9 or P10, of limits, rates, batches or schedules\n";
    assert!(kept.out.ends_with(none), "{}", kept.out);

    // The second job of the group runs while the first one does.
    let early = good.replace("\"at\":2202000", "\"at\":2106500");
    assert_ne!(early, good);
    std::fs::write(file, early).unwrap();
    let broken = check(&[]).await;
    assert_eq!(broken.code, 1, "{}", broken.out);
    assert!(broken.out.contains("P2 one at a time"), "{}", broken.out);
    assert_eq!(broken.err, "", "the stories have told it");
    let stories = check(&["--json"]).await;
    assert!(stories.json().iter().any(|story| story["promise"] == "P2 one at a time"));
}
