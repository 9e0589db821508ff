//! Who is let in, and what is refused.

use std::collections::BTreeMap;

use serde_json::json;
use seriatim_web::{Access, Auth, Config, Identity, User};

use crate::support::{ACTIONS, ANN, ROOT, Shop, VIC, act, get, offers, request, serve, users};

#[tokio::test(flavor = "multi_thread")]
async fn closed_unless_it_is_configured() {
    let shop = Shop::open(0).await;
    let page = serve(shop.pool(), Config::new()).await;
    for path in ["/", "/stopped", "/api/v1/queues", "/events", "/job?id=1", "/nothing"] {
        let answer = request(page, "GET", path, &[], "").await;
        assert_eq!(answer.status, 403, "{path}");
        assert!(answer.body.contains("seriatim_web::Config an auth"), "{path}: {}", answer.body);
    }
    assert_eq!(request(page, "GET", "/healthz", &[], "").await.status, 200);
    assert_eq!(request(page, "GET", "/readyz", &[], "").await.status, 200);
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_way_to_sign_in() {
    let shop = Shop::open(0).await;
    let user = || vec![User::new("ann", "s3cret", Access::Viewer)];
    let cases = [
        (Auth::Basic(user()), "authorization", "Basic YW5uOnMzY3JldA==", 200),
        (Auth::Basic(user()), "authorization", "Basic YW5uOnMzY3JlVA==", 401),
        (Auth::Basic(user()), "authorization", "Basic Ym9iOnMzY3JldA==", 401),
        (Auth::Basic(user()), "authorization", "Basic !!", 401),
        (Auth::Basic(user()), "x-none", "", 401),
        (
            Auth::Basic(vec![User::new("ann", "", Access::Admin)]),
            "authorization",
            "Basic YW5uOg==",
            401,
        ),
        (Auth::Bearer(user()), "authorization", "Bearer s3cret", 200),
        (Auth::Bearer(user()), "authorization", "Bearer s3cre", 401),
        (proxy(None), "x-user", "ann", 200),
        (proxy(None), "x-none", "ann", 403),
        (proxy(Some("x-role")), "x-user", "ann", 200),
        (Auth::Loopback(Access::Viewer), "x-none", "", 200),
        (Auth::Loopback(Access::Viewer), "host", "127.0.0.1:8420", 200),
        (Auth::Loopback(Access::Viewer), "host", "rebound.example", 403),
    ];
    for (auth, name, value, status) in cases {
        let page = serve(shop.pool(), Config::new().auth(auth.clone())).await;
        let answer = request(page, "GET", "/", &[(name, value)], "").await;
        assert_eq!(answer.status, status, "{auth:?} {name}: {value}");
        assert_eq!(answer.head.contains("www-authenticate"), status == 401);
    }
    shop.close().await;
}

fn proxy(role: Option<&'static str>) -> Auth {
    Auth::ProxyHeader {
        user: "x-user".parse().unwrap(),
        role: role.map(|role| role.parse().unwrap()),
        access: Access::Viewer,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_application_decides_by_the_request() {
    let shop = Shop::open(0).await;
    let config = Config::new().access(|parts| match parts.headers.get("cookie") {
        Some(cookie) if cookie == "session=ann" => {
            Identity { name: String::from("ann"), access: Access::Viewer }
        }
        _ => Access::None.into(),
    });
    let page = serve(shop.pool(), config).await;
    let seen = request(page, "GET", "/", &[("cookie", "session=ann")], "").await;
    assert_eq!(seen.status, 200);
    assert!(seen.body.contains("<bdi>ann</bdi>"));
    assert_eq!(request(page, "GET", "/", &[], "").await.status, 403);
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_response_has_the_headers() {
    let shop = Shop::open(0).await;
    let page = serve(shop.pool(), users()).await;
    for (path, user) in
        [("/", VIC), ("/", "Basic bm8="), ("/nothing", VIC), ("/healthz", ""), ("/job?id=x", VIC)]
    {
        let head = get(page, path, user).await.head;
        for header in [
            "content-security-policy: default-src 'self';",
            "frame-ancestors 'none'",
            "x-content-type-options: nosniff",
            "x-frame-options: deny",
            "referrer-policy: no-referrer",
            "cache-control: no-store",
        ] {
            assert!(head.contains(header), "{path} has no {header}: {head}");
        }
    }
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_tables_the_page_says_to_migrate() {
    let shop = Shop::open(0).await;
    let page = serve(shop.pool(), users().schema("elsewhere").unwrap()).await;
    for path in ["/", "/stopped", "/api/v1/queues"] {
        let answer = get(page, path, VIC).await;
        assert_eq!(answer.status, 503, "{path}");
        assert!(answer.body.contains("seriatim migrate"), "{path}: {}", answer.body);
    }
    shop.close().await;
}

/// The policy forbids what is inline, so no page may rely on it.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_inline_and_all_addresses_are_relative() {
    let shop = Shop::open(3).await;
    let page = serve(shop.pool(), users()).await;
    let job = format!("/job?id={}", shop.poison);
    for path in [
        "/",
        "/stopped",
        "/parked",
        "/failed",
        "/schedules",
        "/batches",
        "/nodes",
        "/log",
        "/queue?name=orders",
        "/lane?queue=orders&group=customer-17",
        &job,
    ] {
        let answer = get(page, path, ROOT).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        for inline in [" style=", "<style", " onclick=", "javascript:"] {
            assert!(!answer.body.contains(inline), "{path} has {inline}");
        }
        for absolute in ["href=\"/", "src=\"/", "action=\"/", "http://", "https://"] {
            assert!(!answer.body.contains(absolute), "{path} has {absolute}");
        }
    }
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_needs_the_page_and_the_role() {
    let shop = Shop::open(3).await;
    let page = serve(shop.pool(), users()).await;
    let body = json!({"action": "skip", "job": shop.poison, "reason": "it is wrong"}).to_string();
    let whole = BTreeMap::from([
        ("authorization", ANN),
        ("content-type", "application/json"),
        ("sec-fetch-site", "same-origin"),
        ("x-seriatim", "1"),
    ]);
    let cases: [(&str, Option<&str>); 7] = [
        ("sec-fetch-site", None),
        ("sec-fetch-site", Some("none")),
        ("sec-fetch-site", Some("cross-site")),
        ("sec-fetch-site", Some("same-site")),
        ("x-seriatim", None),
        ("x-seriatim", Some("0")),
        ("authorization", Some(VIC)),
    ];
    for (name, value) in cases {
        let mut headers = whole.clone();
        match value {
            Some(value) => headers.insert(name, value),
            None => headers.remove(name),
        };
        let headers: Vec<_> = headers.into_iter().collect();
        let answer = request(page, "POST", ACTIONS, &headers, &body).await;
        assert_eq!(answer.status, 403, "{name}: {value:?}: {}", answer.body);
    }
    let get = request(page, "GET", ACTIONS, &[("authorization", ANN)], "").await;
    assert_eq!(get.status, 405);
    assert_eq!(shop.client.halted_groups(shop.pool(), "orders").await.unwrap().len(), 1);

    let purge = json!({"queue": "orders", "group": "customer-17", "reason": "a test"});
    assert_eq!(act(page, ANN, "purge", &purge).await.status, 403);
    assert_eq!(act(page, ROOT, "purge", &purge).await.status, 200);
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_viewer_sees_no_button() {
    let shop = Shop::open(3).await;
    let page = serve(shop.pool(), users()).await;
    let read_only = serve(shop.pool(), users().read_only(true)).await;
    let job = format!("/job?id={}", shop.poison);
    for path in [
        "/",
        "/stopped",
        "/failed",
        "/queue?name=orders",
        "/lane?queue=orders&group=customer-17",
        &job,
    ] {
        assert!(get(page, path, ANN).await.body.contains("data-act"), "{path}");
        assert!(!get(page, path, VIC).await.body.contains("data-act"), "{path}");
        assert!(!get(read_only, path, ROOT).await.body.contains("data-act"), "{path}");
    }
    let pause = json!({"queue": "orders", "reason": "a test"});
    assert_eq!(act(read_only, ROOT, "pause", &pause).await.status, 403);
    assert_eq!(act(page, VIC, "pause", &pause).await.status, 403);
    let body = get(page, "/queue?name=orders", ANN).await.body;
    assert!(!offers(&body, "purge"), "purge is an admin's");
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn data_is_shown_only_if_configured() {
    let shop = Shop::open(0).await;
    let hidden = serve(shop.pool(), users()).await;
    let shown = serve(shop.pool(), users().show_data(true)).await;
    for path in [format!("/job?id={}", shop.poison), format!("/api/v1/jobs/{}", shop.poison)] {
        assert!(!get(hidden, &path, ROOT).await.body.contains("poison"), "{path}");
        assert!(get(shown, &path, VIC).await.body.contains("poison"), "{path}");
    }
    shop.close().await;
}

/// The reads need the observer's rights only, and the changes the operator's.
#[tokio::test(flavor = "multi_thread")]
async fn the_observer_reads_and_the_operator_writes() {
    let shop = Shop::open(2).await;
    let name = shop.db.name();
    let (observer, operator) = (format!("{name}_observer"), format!("{name}_operator"));
    let mut script = include_str!("../../../../docs/roles.sql").to_owned();
    for (role, member) in [("seriatim_observer", &observer), ("seriatim_operator", &operator)] {
        script.push_str(
            &["create role \"", member, "\" login; grant ", role, " to \"", member, "\";"].concat(),
        );
    }
    sqlx::raw_sql(sqlx::AssertSqlSafe(script)).execute(shop.pool()).await.unwrap();
    let as_role = |role: &str| {
        let options = shop.pool().connect_options().as_ref().clone().username(role);
        sqlx::postgres::PgPoolOptions::new().connect_lazy_with(options)
    };
    let config = users().write_pool(as_role(&operator));
    let page = serve(&as_role(&observer), config).await;
    let job = format!("/job?id={}", shop.poison);
    for path in [
        "/",
        "/stopped",
        "/parked",
        "/failed",
        "/failed?queue=orders&error=402",
        "/schedules",
        "/batches",
        "/nodes",
        "/log",
        "/queue?name=orders",
        "/lane?queue=orders&group=customer-17",
        "/find?q=customer",
        &job,
    ] {
        let answer = get(page, path, ANN).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    }
    let redrive = json!({"matching": {"queue": "orders"}, "dry_run": true});
    let redriven = act(page, ANN, "redrive_matching", &redrive).await;
    assert_eq!(redriven.json()["jobs"], 1, "{}", redriven.body);
    let skip = json!({"job": shop.poison, "reason": "a test"});
    let skipped = act(page, ANN, "skip", &skip).await;
    assert_eq!(skipped.status, 200, "{}", skipped.body);
    let drop = ["drop role \"", &observer, "\"; drop role \"", &operator, "\""].concat();
    sqlx::raw_sql(sqlx::AssertSqlSafe(drop)).execute(shop.pool()).await.unwrap();
    shop.close().await;
}
