//! Names and errors that were chosen to do harm.

use crate::support::{ANN, Shop, encode, get, serve, users};

fn names() -> Vec<String> {
    vec![
        String::from("<script>alert(1)</script>"),
        String::from("\"><img src=x onerror=alert(1)>"),
        String::from("' or 1=1 -- {{7*7}} ${7}"),
        String::from("\u{202e}gnihtemos \u{5e9}\u{5dc}\u{5d5}\u{5dd}"),
        "🐘".repeat(50),
        String::from("a/b?c=d&e=f#g%00+h"),
        "x".repeat(400),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn names_and_errors_are_only_text() {
    let shop = Shop::open(0).await;
    let page = serve(shop.pool(), users()).await;
    let mut jobs = Vec::new();
    for name in names() {
        jobs.push(shop.enqueue("orders", &name, &format!("poison {name}"), &name).await);
        shop.enqueue("orders", &name, "fine", &name).await;
    }
    for (name, job) in names().into_iter().zip(jobs) {
        shop.halted("orders", &name).await;
        let lane = format!("/lane?queue=orders&group={}", encode(&name));
        let letters = format!("/failed?queue=orders&group={}", encode(&name));
        let job_page = format!("/job?id={job}");
        for path in ["/stopped", "/queue?name=orders", "/failed", &letters, &lane, &job_page] {
            let answer = get(page, path, ANN).await;
            assert_eq!(answer.status, 200, "{path}: {}", answer.body);
            let body = answer.body;
            assert!(!body.contains("<script>alert"), "{path}");
            assert!(!body.contains("<img"), "{path}");
            assert!(!body.contains('\u{202e}') || !name.contains('\u{202e}'), "{path}");
        }
        let found = get(page, &letters, ANN).await.body;
        assert!(found.contains(&format!("job?id={job}")), "{found}");
        let lane = get(page, &lane, ANN).await.body;
        assert!(lane.contains("Lane</span>"), "{lane}");
        assert!(
            lane.contains(&format!("\"retry\",\"job\":{job}}}")),
            "the group was found: {name}"
        );
        let found = get(page, &format!("/find?q={}", encode(&name)), ANN).await;
        assert_eq!(found.status, 200);
        assert!(!found.body.contains("<script>alert") && !found.body.contains("<img"));
        assert!(!found.body.contains('\u{202e}'), "{}", found.body);
        assert!(found.body.contains("lane?queue=orders"), "{name}");
    }
    shop.close().await;
}
