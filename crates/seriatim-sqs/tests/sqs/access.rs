//! Who may ask: signed requests, roles, and servers without signatures.

use std::time::{Duration, Instant, SystemTime};

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{
    SignableBody, SignableRequest, SignatureLocation, SigningSettings, sign,
};
use aws_sigv4::sign::v4::SigningParams;
use http_body_util::Full;
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use seriatim::Client;
use seriatim::testing::{Server, TestDatabase};
use seriatim_sqs::{Access, Config, KeyError, Keys, NewKey, ServeError, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use crate::size::size;
use crate::support::{Answer, PATIENCE, Sqs};

/// Returns a request that the signer of AWS signs at this time.
fn signed(
    sqs: &Sqs,
    key: (&str, &str),
    operation: &str,
    input: &Value,
    time: SystemTime,
) -> Request<Full<Bytes>> {
    let body = input.to_string();
    let mut request = sqs.request(operation, input).map(|_| ());
    let identity = Credentials::new(key.0, key.1, None, None, "test").into();
    let params = SigningParams::builder()
        .identity(&identity)
        .region("eu-west-1")
        .name("sqs")
        .time(time)
        .settings(SigningSettings::default())
        .build()
        .unwrap()
        .into();
    let address = request.uri().to_string();
    let headers =
        request.headers().iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap()));
    let signable =
        SignableRequest::new("POST", &address, headers, SignableBody::Bytes(body.as_bytes()))
            .unwrap();
    let (instructions, _) = sign(signable, &params).unwrap().into_parts();
    instructions.apply_to_request_http1x(&mut request);
    request.map(|()| Full::from(body))
}

async fn ask(sqs: &Sqs, key: (&str, &str), operation: &str, input: Value) -> Answer {
    sqs.send(signed(sqs, key, operation, &input, SystemTime::now())).await
}

/// Returns a presigned address of a queue with these fields.
fn presigned(sqs: &Sqs, key: (&str, &str), queue: &str, fields: &str) -> Request<Full<Bytes>> {
    let address = format!("http://{}/000000000000/{queue}?{fields}", sqs.address);
    let mut request = Request::get(&address).header("host", &sqs.address).body(()).unwrap();
    let identity = Credentials::new(key.0, key.1, None, None, "test").into();
    let mut settings = SigningSettings::default();
    settings.signature_location = SignatureLocation::QueryParams;
    settings.expires_in = Some(Duration::from_mins(1));
    let params = SigningParams::builder()
        .identity(&identity)
        .region("eu-west-1")
        .name("sqs")
        .time(SystemTime::now())
        .settings(settings)
        .build()
        .unwrap()
        .into();
    let headers = [("host", &*sqs.address)].into_iter();
    let signable =
        SignableRequest::new("GET", &address, headers, SignableBody::Bytes(b"")).unwrap();
    let (instructions, _) = sign(signable, &params).unwrap().into_parts();
    instructions.apply_to_request_http1x(&mut request);
    request.map(|()| Full::default())
}

fn error(answer: &Answer) -> String {
    let name = answer.json()["__type"].as_str().unwrap().to_owned();
    name.rsplit('#').next().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_owners_of_keys_are_answered() {
    let sqs = Sqs::start_with(Config::new(), 10).await;
    let keys = Keys::new(sqs.database.pool(), &Client::default());
    let key = keys.add(None).await.unwrap();
    assert!(!format!("{key:?}").contains(&key.secret));
    let own = (&*key.access_key, &*key.secret);
    let create = json!({"QueueName": "q"});
    assert_eq!(ask(&sqs, own, "CreateQueue", create.clone()).await.status, 200);
    let arn = json!({"QueueUrl": "q", "AttributeNames": ["QueueArn"]});
    let arn = ask(&sqs, own, "GetQueueAttributes", arn).await.json();
    assert_eq!(arn["Attributes"]["QueueArn"], "arn:aws:sqs:eu-west-1:000000000000:q");

    let wrong = ask(&sqs, (own.0, "wrong"), "ListQueues", json!({})).await;
    assert_eq!((wrong.status, &*error(&wrong)), (403, "InvalidSignatureException"));
    let unknown = ask(&sqs, ("UNKNOWN", own.1), "ListQueues", json!({})).await;
    assert_eq!((unknown.status, &*error(&unknown)), (403, "UnrecognizedClientException"));
    let unsigned = sqs.ask("ListQueues", json!({})).await;
    assert_eq!((unsigned.status, &*error(&unsigned)), (403, "MissingAuthenticationTokenException"));
    let query = sqs.query("/", &[("Action", "ListQueues")]).await;
    assert!(query.body.contains("<Code>MissingAuthenticationToken</Code>"), "{}", query.body);

    assert_eq!(keys.list().await.unwrap()[0].access_key, key.access_key);
    assert!(keys.remove(&key.access_key).await.unwrap());
    assert!(!keys.remove(&key.access_key).await.unwrap());
    // Keys are read twice a second.
    let removed = Instant::now();
    loop {
        let begun = removed.elapsed();
        if ask(&sqs, own, "ListQueues", json!({})).await.status == 403 {
            break;
        }
        assert!(begun < Duration::from_secs(1), "a key that was removed still counts");
    }
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_poll_of_a_removed_key_gets_nothing() {
    a_long_poll_is_refused(async |keys, key| keys.remove(key).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_poll_of_a_disabled_key_gets_nothing() {
    a_long_poll_is_refused(async |keys, key| keys.disable(key).await.unwrap()).await;
}

/// Refuses the long poll of a key that is taken away while it waits.
async fn a_long_poll_is_refused(taken_away: impl AsyncFn(&Keys, &str) -> bool) {
    let sqs = Sqs::start_with(Config::new(), 10).await;
    let keys = Keys::new(sqs.database.pool(), &Client::default());
    let (removed, kept) = (keys.add(None).await.unwrap(), keys.add(None).await.unwrap());
    let removed = (&*removed.access_key, &*removed.secret);
    let kept = (&*kept.access_key, &*kept.secret);
    ask(&sqs, kept, "CreateQueue", json!({"QueueName": "q"})).await;
    let poll = json!({"QueueUrl": "q", "WaitTimeSeconds": 20});
    let news = async {
        // It has asked, and waits.
        while sqs.number("select count(*) from seriatim.receiver where queue = 'q'").await == 0 {
            sleep(Duration::from_millis(10)).await;
        }
        assert!(taken_away(&keys, removed.0).await);
        while ask(&sqs, removed, "ListQueues", json!({})).await.status != 403 {
            sleep(Duration::from_millis(10)).await;
        }
        ask(&sqs, kept, "SendMessage", json!({"QueueUrl": "q", "MessageBody": "1"})).await
    };
    let (refused, sent) = tokio::join!(ask(&sqs, removed, "ReceiveMessage", poll.clone()), news);
    assert_eq!(sent.status, 200, "{}", sent.body);
    assert_eq!((refused.status, &*error(&refused)), (403, "UnrecognizedClientException"));
    let received = ask(&sqs, kept, "ReceiveMessage", poll).await.json();
    assert_eq!(received["Messages"][0]["Body"], "1");
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_counts_while_one_of_several_servers_is_there() {
    let server = Server::start().await.unwrap();
    let databases = vec![
        TestDatabase::create_on(&server).await.unwrap(),
        TestDatabase::create().await.unwrap(),
    ];
    let (sqs, shards) = Sqs::start_over(databases, Config::new()).await;
    let (key, all) = (NewKey::random(), None::<&[&str]>);
    for (_, pool) in shards.iter() {
        let keys = Keys::new(pool, &Client::default());
        keys.store(&key, None, all).await.unwrap();
        assert!(matches!(keys.store(&key, None, all).await, Err(KeyError::Database(_))));
    }
    let own = (&*key.access_key, &*key.secret);
    assert_eq!(ask(&sqs, own, "CreateQueue", json!({"QueueName": "q"})).await.status, 200);
    server.stop_immediately().await.unwrap();
    let message = json!({"QueueUrl": "q", "MessageBody": "1"});
    let begun = Instant::now();
    loop {
        let sent = ask(&sqs, own, "SendMessage", message.clone()).await;
        if sent.status == 200 {
            break;
        }
        assert_eq!(error(&sent), "ServiceUnavailableException");
        assert!(begun.elapsed() < PATIENCE, "{}", sent.body);
    }
    let unknown = ask(&sqs, ("UNKNOWN", own.1), "ListQueues", json!({})).await;
    assert_eq!(error(&unknown), "UnrecognizedClientException");
    let received = call(&sqs, own, "ReceiveMessage", json!({"QueueUrl": "q"})).await;
    assert_eq!(received["Messages"][0]["Body"], "1");
    server.start_again().await.unwrap();
    sqs.end().await;
}

/// As after a failover, which leads the server's own pool to another primary.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_with_a_role_follows_the_servers_pool() {
    let (sqs, shards) =
        Sqs::start_over(vec![TestDatabase::create().await.unwrap()], Config::new()).await;
    let other = TestDatabase::create().await.unwrap();
    let (_, pool) = shards.iter().next().unwrap();
    let role: String =
        sqlx::query_scalar("select current_user::text").fetch_one(pool).await.unwrap();
    let key = NewKey::random();
    for database in [&sqs.database, &other] {
        let keys = Keys::new(database.pool(), &Client::default());
        keys.store(&key, Some(&role), None::<&[&str]>).await.unwrap();
    }
    let own = (&*key.access_key, &*key.secret);
    assert_eq!(ask(&sqs, own, "CreateQueue", json!({"QueueName": "q"})).await.status, 200);
    let message = json!({"QueueUrl": "q", "MessageBody": "1"});
    assert_eq!(ask(&sqs, own, "SendMessage", message.clone()).await.status, 200);
    let copied = "insert into seriatim.sqs_queue (name) values ('q')";
    sqlx::query(copied).execute(other.pool()).await.unwrap();
    pool.set_connect_options((*other.pool().connect_options()).clone());
    assert_eq!(ask(&sqs, own, "SendMessage", message).await.status, 200);
    let jobs = "select count(*) from seriatim.job";
    assert_eq!(sqs.number(jobs).await, 1);
    let there: i64 = sqlx::query_scalar(jobs).fetch_one(other.pool()).await.unwrap();
    assert_eq!(there, 1);
    sqs.end().await;
    other.remove().await.unwrap();
}

/// A signature is good for 15 minutes around its time, for its request and no other.
#[tokio::test(flavor = "multi_thread")]
async fn a_signature_is_of_its_time_and_its_request() {
    let sqs = Sqs::start_with(Config::new(), 10).await;
    let key = Keys::new(sqs.database.pool(), &Client::default()).add(None).await.unwrap();
    let own = (&*key.access_key, &*key.secret);
    let (now, minute) = (SystemTime::now(), Duration::from_mins(1));
    let (list, none) = ("ListQueues", json!({}));
    for (time, status) in [
        (now - 14 * minute, 200),
        (now + 14 * minute, 200),
        (now - 16 * minute, 403),
        (now + 16 * minute, 403),
        (now - 10_000_000 * minute, 403),
    ] {
        let answer = sqs.send(signed(&sqs, own, list, &none, time)).await;
        assert_eq!(answer.status, status, "{}", answer.body);
        if status == 403 {
            assert_eq!(error(&answer), "InvalidSignatureException");
            assert!(answer.body.contains("Signature not valid now"), "{}", answer.body);
        }
    }
    // The same request again, as long as it is good: as with AWS.
    let once = signed(&sqs, own, list, &none, now);
    for _ in 0..2 {
        assert_eq!(sqs.send(once.clone()).await.status, 200);
    }
    let changed = |change: fn(&mut Request<Full<Bytes>>)| {
        let mut request = once.clone();
        change(&mut request);
        sqs.send(request)
    };
    let cases: [fn(&mut Request<Full<Bytes>>); 6] = [
        |request| *request.body_mut() = Full::from("{ }"),
        |request| *request.uri_mut() = format!("{}?a=b", request.uri()).parse().unwrap(),
        |request| {
            let create = "AmazonSQS.CreateQueue".parse().unwrap();
            request.headers_mut().insert("x-amz-target", create);
        },
        |request| {
            let later = "20261124T000000Z".parse().unwrap();
            request.headers_mut().insert("x-amz-date", later);
        },
        |request| _ = request.headers_mut().remove("x-amz-date"),
        |request| {
            let cut = request.headers()["authorization"].to_str().unwrap().replace(';', ",");
            request.headers_mut().insert("authorization", cut.parse().unwrap());
        },
    ];
    for (place, change) in cases.into_iter().enumerate() {
        let answer = changed(change).await;
        assert!([400, 403].contains(&answer.status), "{place}: {}", answer.body);
        let name = error(&answer);
        let known = ["InvalidSignatureException", "IncompleteSignatureException"];
        assert!(known.contains(&&*name), "{place}: {name}");
    }
    sqs.end().await;
}

/// Heads that show enough are refused before the body comes; large bodies of the others fit.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_body_is_read_of_known_keys_alone() {
    let sqs = Sqs::start_with(Config::new().body_memory(16 << 20), 10).await;
    let keys = Keys::new(sqs.database.pool(), &Client::default());
    let key = keys.add(None).await.unwrap();
    let own = (&*key.access_key, &*key.secret);
    assert_eq!(ask(&sqs, own, "CreateQueue", json!({"QueueName": "q"})).await.status, 200);
    let large = json!({"QueueUrl": "q", "MessageBody": "x".repeat(200 * 1024)});
    let minute = Duration::from_mins(1);
    // More than there is memory for, of which none sends its body.
    let mut clients = Vec::new();
    for (key, time) in
        [(("UNKNOWN", own.1), SystemTime::now()), (own, SystemTime::now() - 16 * minute)]
    {
        for sized in [true, false, true] {
            let request = signed(&sqs, key, "SendMessage", &large, time);
            let mut head = String::from("POST / HTTP/1.1\r\n");
            for (name, value) in request.headers() {
                head.extend([name.as_str(), ": ", value.to_str().unwrap(), "\r\n"]);
            }
            head += if sized {
                "content-length: 4194304\r\n\r\n"
            } else {
                "transfer-encoding: chunked\r\n\r\n"
            };
            let mut client = TcpStream::connect(&sqs.address).await.unwrap();
            client.write_all(head.as_bytes()).await.unwrap();
            let mut answer = [0; 12];
            timeout(PATIENCE / 2, client.read_exact(&mut answer)).await.unwrap().unwrap();
            assert_eq!(&answer, b"HTTP/1.1 403");
            clients.push(client);
        }
    }
    let sent = ask(&sqs, own, "SendMessage", large).await;
    assert_eq!(sent.status, 200, "{}", sent.body);
    drop(clients);
    sqs.end().await;
}

/// In each state of a request, more silent clients than there are places or memory for. Then a
/// small request, and a large one, on an open connection and on a new one.
#[tokio::test(flavor = "multi_thread")]
async fn silent_clients_hold_up_nobody_whatever_they_wait_for() {
    let config = Config::new().body_memory(16 << 20).connections(300);
    let sqs = Sqs::start_with(config, 10).await;
    let keys = Keys::new(sqs.database.pool(), &Client::default());
    let key = keys.add(None).await.unwrap();
    let own = (&*key.access_key, &*key.secret);
    assert_eq!(ask(&sqs, own, "CreateQueue", json!({"QueueName": "q"})).await.status, 200);
    let head = |key: (&str, &str), more: &str| {
        let request = signed(&sqs, key, "SendMessage", &json!({}), SystemTime::now());
        let mut head = String::from("POST / HTTP/1.1\r\n");
        for (name, value) in request.headers() {
            head.extend([name.as_str(), ": ", value.to_str().unwrap(), "\r\n"]);
        }
        head + more + "\r\n\r\n"
    };
    let (small, large) = ("content-length: 65536", "content-length: 4194304");
    let expects = format!("{small}\r\nexpect: 100-continue");
    let chunked = format!("{}ea60\r\n", head(own, "transfer-encoding: chunked"));
    // A client that knows the name of a key has not signed with the key yet.
    let forged = (own.0, "another secret");
    let clients = [
        ("says nothing", String::new()),
        ("half a head", "POST / HTTP/1.1\r\nhost: x\r\nx-long: ".to_owned() + &"x".repeat(60_000)),
        ("no key", format!("POST / HTTP/1.1\r\nhost: x\r\n{small}\r\n\r\n{}", "x".repeat(60_000))),
        ("an unknown key", head(("UNKNOWN", own.1), small) + &"x".repeat(60_000)),
        ("a small body", head(forged, small) + &"x".repeat(60_000)),
        ("a large body", head(forged, large) + &"x".repeat(90_000)),
        ("a chunked body", chunked + &"x".repeat(59_000)),
        ("a body that is asked for", head(forged, &expects)),
        ("another request", head(own, "content-length: 0")),
    ];
    // A plain run takes three: silence, a body of an unknown key, and a chunked one.
    for (state, bytes) in clients.into_iter().step_by(size(3, 1)) {
        let silent = (0..400).map(|_| async {
            let mut client = TcpStream::connect(&sqs.address).await.unwrap();
            // It may be closed in the meantime.
            _ = timeout(Duration::from_secs(1), client.write_all(bytes.as_bytes())).await;
            client
        });
        let silent = futures::future::join_all(silent).await;
        let fresh = HttpClient::builder(TokioExecutor::new()).build_http();
        for length in [1, 200 * 1024] {
            let message = json!({"QueueUrl": "q", "MessageBody": "x".repeat(length)});
            let request = || signed(&sqs, own, "SendMessage", &message, SystemTime::now());
            for is_new in [true, false] {
                let begun = Instant::now();
                let status = if is_new {
                    let answer = timeout(PATIENCE, fresh.request(request())).await;
                    answer.expect(state).expect(state).status().as_u16()
                } else {
                    sqs.send(request()).await.status
                };
                println!("{state}: {length} bytes, new {is_new}: {:.2?}", begun.elapsed());
                assert_eq!(status, 200, "{state}");
                // Close to a second, if the machine has nothing else to do; 30 s otherwise.
                assert!(
                    begun.elapsed() < Duration::from_secs(20),
                    "{state}: {:?}",
                    begun.elapsed()
                );
            }
        }
        drop(silent);
    }
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disabled_key_is_refused_until_it_is_enabled() {
    let sqs = Sqs::start_with(Config::new(), 10).await;
    let keys = Keys::new(sqs.database.pool(), &Client::default());
    let key = keys.add_for(None, &["q*"]).await.unwrap();
    let own = (&*key.access_key, &*key.secret);
    let counts = async |does: bool| {
        let changed = Instant::now();
        loop {
            let begun = changed.elapsed();
            if (ask(&sqs, own, "ListQueues", json!({})).await.status == 200) == does {
                break;
            }
            // Keys are read twice a second.
            assert!(begun < Duration::from_secs(1), "counts: {}", !does);
        }
    };
    counts(true).await;
    for _ in 0..2 {
        assert!(!keys.enable(own.0).await.unwrap());
        assert!(keys.disable(own.0).await.unwrap());
        assert!(!keys.disable(own.0).await.unwrap());
        counts(false).await;
        let refused = ask(&sqs, own, "ListQueues", json!({})).await;
        assert_eq!((refused.status, &*error(&refused)), (403, "UnrecognizedClientException"));
        let listed = keys.list().await.unwrap().remove(0);
        assert!(listed.disabled_at.is_some() && listed.queues == Some(vec!["q*".to_owned()]));
        assert!(keys.enable(own.0).await.unwrap());
        counts(true).await;
        assert_eq!(keys.list().await.unwrap()[0].disabled_at, None);
    }
    // Its limits came back with it.
    assert_eq!(ask(&sqs, own, "CreateQueue", json!({"QueueName": "q"})).await.status, 200);
    assert_eq!(ask(&sqs, own, "CreateQueue", json!({"QueueName": "r"})).await.status, 403);
    assert!(!keys.disable("UNKNOWN").await.unwrap());
    sqs.end().await;
}

/// A program of the version before reads the column `secret`, and knows no limits.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_without_limits_finds_no_secret_of_a_key_with_some() {
    let sqs = Sqs::start_with(Config::new(), 10).await;
    let keys = Keys::new(sqs.database.pool(), &Client::default());
    let (plain, limited) = (keys.add(None).await.unwrap(), keys.add_for(None, &["q"]).await);
    let limited = limited.unwrap();
    let secret = async |key: &str| {
        let sql = "select secret from seriatim.sqs_key where access_key = $1";
        let secret = sqlx::query_scalar::<_, Option<String>>(sql).bind(key);
        secret.fetch_one(sqs.database.pool()).await.unwrap()
    };
    assert_eq!(secret(&plain.access_key).await, Some(plain.secret.clone()));
    assert_eq!(secret(&limited.access_key).await, None);
    for key in [&plain, &limited] {
        keys.disable(&key.access_key).await.unwrap();
        assert_eq!(secret(&key.access_key).await, None);
        keys.enable(&key.access_key).await.unwrap();
    }
    assert_eq!(secret(&plain.access_key).await, Some(plain.secret.clone()));
    assert_eq!(secret(&limited.access_key).await, None);
    // Nor does a hand that takes a limit away leave the secret where it is not read.
    let by_hand = "update seriatim.sqs_key set queues = null where queues is not null";
    sqlx::query(by_hand).execute(sqs.database.pool()).await.unwrap_err();
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_keys_are_recorded_without_secrets() {
    let sqs = Sqs::start_with(Config::new(), 10).await;
    let (pool, client) = (sqs.database.pool(), Client::default());
    let keys = Keys::new(pool, &client).acting("ann", "rotation");
    let user: String =
        sqlx::query_scalar("select session_user::text").fetch_one(pool).await.unwrap();
    let key = keys.add_for(Some(&user), &["orders*", "mail"]).await.unwrap();
    for _ in 0..2 {
        keys.disable(&key.access_key).await.unwrap();
    }
    keys.enable(&key.access_key).await.unwrap();
    keys.remove(&key.access_key).await.unwrap();
    keys.remove(&key.access_key).await.unwrap();
    keys.add_for(Some("no such role"), &["q"]).await.unwrap_err();
    keys.add_for(None, &["a b"]).await.unwrap_err();
    let plain = Keys::new(pool, &client).add(None).await.unwrap();
    let mut recorded = client.operations(pool, None, 20).await.unwrap();
    recorded.reverse();
    let last = recorded.pop().unwrap();
    assert_eq!((last.actor, last.reason), (user.clone(), None));
    assert_eq!((last.sqs_key, &*last.action), (Some(plain.access_key), "add_sqs_key"));
    let actions: Vec<&str> = recorded.iter().map(|of| &*of.action).collect();
    let expected = ["add_sqs_key", "disable_sqs_key", "enable_sqs_key", "remove_sqs_key"];
    assert_eq!(actions, expected);
    let words = format!("{}, role {user}, queues orders*,mail", key.access_key);
    for of in recorded {
        assert_eq!((&*of.actor, of.reason.as_deref()), ("ann", Some("rotation")));
        assert_eq!((of.sqs_key, of.db_user), (Some(words.clone()), Some(user.clone())));
    }
    sqs.end().await;
}

/// The operations of the server, by its source.
fn operations() -> Vec<&'static str> {
    let source = include_str!("../../src/service/mod.rs");
    let named =
        source.lines().filter(|line| line.contains("=> Box::pin(") || line.ends_with("=> {"));
    let named = named.filter_map(|line| line.trim().strip_prefix('"')?.split('"').next());
    let named: Vec<&str> = named.collect();
    assert_eq!(named.len(), 23, "{named:?}");
    named
}

/// The input of an operation on a queue: as it is sound, as far as it is no matter for rights.
fn input_of(operation: &str, url: &str) -> Value {
    let name = url.rsplit('/').find(|part| !part.is_empty()).unwrap();
    let arn = arn("000000000000", name);
    match operation {
        "CreateQueue" | "GetQueueUrl" => json!({"QueueName": name}),
        "ListQueues" => json!({"QueueNamePrefix": name}),
        "SendMessage" => json!({"QueueUrl": url, "MessageBody": "b"}),
        "SendMessageBatch" => {
            json!({"QueueUrl": url, "Entries": [{"Id": "1", "MessageBody": "b"}]})
        }
        "DeleteMessage" => json!({"QueueUrl": url, "ReceiptHandle": "r"}),
        "DeleteMessageBatch" => {
            json!({"QueueUrl": url, "Entries": [{"Id": "1", "ReceiptHandle": "r"}]})
        }
        "ChangeMessageVisibility" => {
            json!({"QueueUrl": url, "ReceiptHandle": "r", "VisibilityTimeout": 0})
        }
        "ChangeMessageVisibilityBatch" => json!({"QueueUrl": url, "Entries": [
            {"Id": "1", "ReceiptHandle": "r", "VisibilityTimeout": 0}]}),
        "SetQueueAttributes" => json!({"QueueUrl": url, "Attributes": {"DelaySeconds": "0"}}),
        "TagQueue" => json!({"QueueUrl": url, "Tags": {"a": "b"}}),
        "UntagQueue" => json!({"QueueUrl": url, "TagKeys": ["a"]}),
        "AddPermission" => json!({"QueueUrl": url, "Label": "l",
            "AWSAccountIds": ["000000000000"], "Actions": ["*"]}),
        "RemovePermission" => json!({"QueueUrl": url, "Label": "l"}),
        "StartMessageMoveTask" => {
            json!({"SourceArn": arn, "DestinationArn": self::arn("000000000000", "orders")})
        }
        "ListMessageMoveTasks" => json!({"SourceArn": arn}),
        "CancelMessageMoveTask" => {
            let task = json!({"taskId": "00000000-0000-0000-0000-000000000001", "sourceArn": arn});
            json!({"TaskHandle": base64(task.to_string().as_bytes())})
        }
        _ => json!({"QueueUrl": url}),
    }
}

/// Base64 with padding: handles of tasks are written so.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
        let bits = bits << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let digit = usize::try_from(bits >> (18 - 6 * place) & 63).unwrap();
            text.push(if place <= chunk.len() { DIGITS[digit].into() } else { '=' });
        }
    }
    text
}

/// Each operation, in both protocols and at odd addresses.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_some_queues_is_refused_at_all_others() {
    let sqs = Sqs::start_with(Config::new(), 10).await;
    let keys = Keys::new(sqs.database.pool(), &Client::default());
    let all = keys.add(None).await.unwrap();
    let some = keys.add_for(None, &["orders*", "a_b"]).await.unwrap();
    let (all, some) = ((&*all.access_key, &*all.secret), (&*some.access_key, &*some.secret));
    for name in ["mail", "axb"] {
        ask(&sqs, all, "CreateQueue", json!({"QueueName": name})).await;
    }
    let base = format!("http://{}", sqs.address);
    for operation in operations() {
        let mut urls: Vec<String> = ["mail", "/000000000000/mail", "000000000000/mail/", "axb"]
            .into_iter()
            .map(str::to_owned)
            .collect();
        urls.push(format!("{base}/000000000000/mail"));
        urls.push(String::from("https://orders.example.com/orders/000000000000/mail//"));
        // Queues that are not there are refused too: nobody learns which are.
        urls.push(String::from("none"));
        urls.push(format!("{base}/000000000000/ORDERS"));
        for url in urls {
            let answer = ask(&sqs, some, operation, input_of(operation, &url)).await;
            if operation == "ListQueues" {
                assert_eq!(answer.body, "{}", "{url}");
                continue;
            }
            assert_eq!(answer.status, 403, "{operation} {url}: {}", answer.body);
            assert_eq!(error(&answer), "AccessDeniedException", "{operation} {url}");
        }
        // With the prefix in the name, or in another part of the address, it is another queue.
        for (url, code) in [("mail\0orders", 403), ("orders\0", 400), ("orders/mail", 400)] {
            let input = json!({"QueueUrl": url, "MessageBody": "b"});
            let answer = ask(&sqs, some, "SendMessage", input).await;
            assert_eq!(answer.status, code, "{url:?}: {}", answer.body);
        }
    }
    assert_eq!(sqs.number("select count(*) from seriatim.job").await, 0);
    assert_eq!(sqs.number("select count(*) from seriatim.sqs_queue where tags <> '{}'").await, 0);

    let send = "Action=SendMessage&MessageBody=b";
    for (queue, fields, status) in [
        ("orders", "Action=GetQueueAttributes", 400),
        ("mail", send, 403),
        ("%6Dail", send, 403),
        ("mail", "Action=ReceiveMessage", 403),
        // The address is of one queue, and the request of another.
        ("orders", "Action=SendMessage&MessageBody=b&QueueUrl=mail", 403),
        ("mail", "Action=SendMessage&MessageBody=b&QueueUrl=orders", 400),
    ] {
        let answer = sqs.send(presigned(&sqs, some, queue, fields)).await;
        assert_eq!(answer.status, status, "{queue} {fields}: {}", answer.body);
        let code = if status == 403 { "AccessDenied" } else { "NonExistentQueue" };
        assert!(answer.body.contains(code), "{queue} {fields}: {}", answer.body);
    }
    sqs.end().await;
}

/// The result of an operation that is not refused.
async fn call(sqs: &Sqs, key: (&str, &str), operation: &str, input: Value) -> Value {
    let answer = ask(sqs, key, operation, input).await;
    assert_eq!(answer.status, 200, "{operation}: {}", answer.body);
    answer.json()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_some_queues_has_its_rights_there() {
    let sqs = Sqs::start_with(Config::new(), 10).await;
    let keys = Keys::new(sqs.database.pool(), &Client::default());
    let all = keys.add(None).await.unwrap();
    let some = keys.add_for(None, &["orders*", "a_b"]).await.unwrap();
    let (all, some) = ((&*all.access_key, &*all.secret), (&*some.access_key, &*some.secret));
    for name in ["axb", "mail", "orders2"] {
        call(&sqs, all, "CreateQueue", json!({"QueueName": name})).await;
    }
    for name in ["orders", "orders-dead", "a_b"] {
        call(&sqs, some, "CreateQueue", json!({"QueueName": name})).await;
    }
    let names = |listed: Value, list: &str| -> Vec<String> {
        let urls = listed[list].as_array().cloned().unwrap_or_default();
        let name = |url: &Value| url.as_str().unwrap().rsplit('/').next().unwrap().to_owned();
        urls.iter().map(name).collect()
    };
    let listed = call(&sqs, some, "ListQueues", json!({})).await;
    assert_eq!(names(listed, "QueueUrls"), ["a_b", "orders", "orders-dead", "orders2"]);
    // By pages: what is left out takes no place.
    let (mut page, mut found) = (json!({"MaxResults": 1}), Vec::new());
    loop {
        let listed = call(&sqs, some, "ListQueues", page.clone()).await;
        page["NextToken"] = listed["NextToken"].clone();
        found.extend(names(listed, "QueueUrls"));
        if page["NextToken"].is_null() {
            break;
        }
    }
    assert_eq!(found, ["a_b", "orders", "orders-dead", "orders2"]);

    let to = |target: &str| {
        let policy =
            json!({"deadLetterTargetArn": arn("000000000000", target), "maxReceiveCount": 1});
        json!({"RedrivePolicy": policy.to_string()})
    };
    let set = |queue: &str, target: &str| json!({"QueueUrl": queue, "Attributes": to(target)});
    for target in ["mail", "none"] {
        let refused = ask(&sqs, some, "SetQueueAttributes", set("orders", target)).await;
        assert_eq!((refused.status, &*error(&refused)), (403, "AccessDeniedException"));
        let create = json!({"QueueName": "orders3", "Attributes": to(target)});
        assert_eq!(ask(&sqs, some, "CreateQueue", create).await.status, 403);
    }
    call(&sqs, some, "SetQueueAttributes", set("orders", "orders-dead")).await;
    call(&sqs, all, "SetQueueAttributes", set("mail", "orders-dead")).await;
    let sources = json!({"QueueUrl": "orders-dead"});
    let sources = call(&sqs, some, "ListDeadLetterSourceQueues", sources).await;
    assert_eq!(names(sources, "queueUrls"), ["orders"]);

    for operation in ["SendMessage", "ReceiveMessage", "PurgeQueue", "DeleteQueue"] {
        call(&sqs, some, operation, input_of(operation, "a_b")).await;
    }
    // Who did it is on record: the key, beside the user of the database.
    let mut done = Client::default().operations(sqs.database.pool(), None, 100).await.unwrap();
    done.retain(|of| of.actor == some.0);
    done.reverse();
    let done: Vec<_> = done.iter().map(|of| of.reason.as_deref().unwrap()).collect();
    let expected = [
        "CreateQueue",
        "CreateQueue",
        "CreateQueue",
        "SetQueueAttributes",
        "PurgeQueue",
        "DeleteQueue",
    ];
    assert_eq!(done, expected);
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_some_queues_moves_messages_among_them_alone() {
    let sqs = Sqs::start_with(Config::new(), 10).await;
    let keys = Keys::new(sqs.database.pool(), &Client::default());
    let all = keys.add(None).await.unwrap();
    let some = keys.add_for(None, &["orders*"]).await.unwrap();
    let (all, some) = ((&*all.access_key, &*all.secret), (&*some.access_key, &*some.secret));
    for name in ["mail", "orders", "orders-dead"] {
        call(&sqs, all, "CreateQueue", json!({"QueueName": name})).await;
    }
    let policy =
        json!({"deadLetterTargetArn": arn("000000000000", "orders-dead"), "maxReceiveCount": 1});
    let policy = json!({"RedrivePolicy": policy.to_string()});
    let set = json!({"QueueUrl": "mail", "Attributes": policy});
    call(&sqs, all, "SetQueueAttributes", set).await;
    // A task to any queue is for a key of all, and so is what such a task has done.
    let source = arn("000000000000", "orders-dead");
    let start = |target: Option<&str>| match target {
        Some(to) => json!({"SourceArn": source, "DestinationArn": arn("000000000000", to)}),
        None => json!({ "SourceArn": source }),
    };
    for target in [None, Some("mail")] {
        let refused = ask(&sqs, some, "StartMessageMoveTask", start(target)).await;
        assert_eq!((refused.status, &*error(&refused)), (403, "AccessDeniedException"));
        // It goes on for as long as there is something.
        for body in ["a", "b", "c"] {
            call(&sqs, all, "SendMessage", json!({"QueueUrl": "orders-dead", "MessageBody": body}))
                .await;
        }
        let mut slow = start(Some("mail"));
        slow["MaxNumberOfMessagesPerSecond"] = 1.into();
        let task = call(&sqs, all, "StartMessageMoveTask", slow).await;
        let cancel = json!({"TaskHandle": task["TaskHandle"]});
        let list = json!({"SourceArn": source});
        let hidden = call(&sqs, some, "ListMessageMoveTasks", list.clone()).await;
        assert_eq!(hidden["Results"], json!([]));
        let refused = ask(&sqs, some, "CancelMessageMoveTask", cancel.clone()).await;
        assert_eq!(error(&refused), "ResourceNotFoundException");
        assert_eq!(
            call(&sqs, all, "ListMessageMoveTasks", list).await["Results"][0]["Status"],
            "RUNNING"
        );
        call(&sqs, all, "CancelMessageMoveTask", cancel).await;
    }
    let mut slow = start(Some("orders"));
    slow["MaxNumberOfMessagesPerSecond"] = 1.into();
    let task = call(&sqs, some, "StartMessageMoveTask", slow).await;
    let list = call(&sqs, some, "ListMessageMoveTasks", json!({"SourceArn": source})).await;
    assert_eq!(list["Results"][0]["TaskHandle"], task["TaskHandle"]);
    call(&sqs, some, "CancelMessageMoveTask", json!({"TaskHandle": task["TaskHandle"]})).await;
    let acts =
        "select count(*) from seriatim.operation where actor = $1 and action like '%move_task'";
    let acts = sqlx::query_scalar::<_, i64>(acts).bind(some.0);
    assert_eq!(acts.fetch_one(sqs.database.pool()).await.unwrap(), 2);
    sqs.end().await;
}

/// An old handle names a job. It deletes nothing that has gone to a queue of others meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_handle_of_before_a_move_deletes_nothing_in_the_other_queue() {
    let sqs = Sqs::start().await;
    sqs.queue("dead").await;
    let policy = json!({"deadLetterTargetArn": arn("000000000000", "dead"), "maxReceiveCount": 1});
    let settings = json!({"VisibilityTimeout": "0", "RedrivePolicy": policy.to_string()});
    let url = sqs.queue_with("q", settings).await;
    sqs.call("SendMessage", json!({"QueueUrl": url, "MessageBody": "b"})).await;
    let first = sqs.receive(&url).await.remove(0);
    assert_eq!(sqs.receive(&url).await.len(), 0);
    let moved = sqs.receive("dead").await;
    assert_eq!(moved[0]["MessageId"], first["MessageId"]);
    assert_eq!(sqs.delete(&url, &first).await.status, 200);
    let unfinished = "select count(*) from seriatim.job where finished_at is null";
    assert_eq!(sqs.number(unfinished).await, 1);
    sqs.delete("dead", &moved[0]).await;
    assert_eq!(sqs.number(unfinished).await, 0);
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_has_the_rights_of_its_role() {
    let sqs = Sqs::start_with(Config::new(), 10).await;
    let roles = ["producer", "worker", "observer", "operator"];
    let name = |role: &str| format!("{}_{role}", sqs.database.name());
    let sql =
        roles.iter().fold(include_str!("../../../../docs/roles.sql").to_owned(), |sql, role| {
            sql.replace(&format!("seriatim_{role}"), &name(role))
        });
    sqs.sql(&sql).await;
    let keys = Keys::new(sqs.database.pool(), &Client::default());
    keys.add(Some("no such role")).await.unwrap_err();
    let mut made = Vec::new();
    for role in roles {
        made.push(keys.add(Some(&name(role))).await.unwrap());
    }
    let of = |role: &str| {
        let at = roles.iter().position(|known| *known == role).unwrap();
        (made[at].access_key.as_str(), made[at].secret.as_str())
    };
    let url = json!({"QueueUrl": "q.fifo"});
    let create =
        json!({"QueueName": "q.fifo", "Attributes": {"FifoQueue": "true"}, "tags": {"a": "b"}});
    let send = json!({"QueueUrl": "q.fifo", "MessageBody": "1", "MessageGroupId": "g",
        "MessageDeduplicationId": "1", "MessageAttributes": {"a": {"DataType": "String", "StringValue": "b"}}});
    let all = json!({"QueueUrl": "q.fifo", "AttributeNames": ["All"]});
    for (role, operation, input, status) in [
        ("worker", "CreateQueue", &create, 403),
        ("operator", "CreateQueue", &create, 200),
        ("producer", "SendMessage", &send, 200),
        ("producer", "SendMessage", &send, 200),
        ("producer", "ReceiveMessage", &url, 403),
        ("observer", "SendMessage", &send, 403),
        ("observer", "ReceiveMessage", &url, 403),
        ("observer", "GetQueueAttributes", &all, 200),
        ("worker", "GetQueueAttributes", &all, 200),
        ("worker", "PurgeQueue", &url, 200),
        ("worker", "SendMessage", &send, 200),
        ("worker", "DeleteQueue", &url, 403),
    ] {
        let answer = ask(&sqs, of(role), operation, input.clone()).await;
        assert_eq!(answer.status, status, "{role} {operation}: {}", answer.body);
        if status == 403 {
            assert_eq!(error(&answer), "AccessDeniedException");
        }
    }
    let received = ask(&sqs, of("worker"), "ReceiveMessage", url.clone()).await.json();
    let handle = &received["Messages"][0]["ReceiptHandle"];
    let delete = json!({"QueueUrl": "q.fifo", "ReceiptHandle": handle});
    assert_eq!(ask(&sqs, of("producer"), "DeleteMessage", delete.clone()).await.status, 403);
    assert_eq!(ask(&sqs, of("worker"), "DeleteMessage", delete).await.status, 200);
    let set = json!({"QueueUrl": "q.fifo", "Attributes": {"DelaySeconds": "1"}});
    assert_eq!(ask(&sqs, of("operator"), "SetQueueAttributes", set).await.status, 200);
    assert_eq!(ask(&sqs, of("operator"), "DeleteQueue", url).await.status, 200);
    let revoked =
        "select count(*) from pg_catalog.pg_roles r where r.rolname like current_database() || '%'
        and (has_table_privilege(r.oid, 'seriatim.sqs_key', 'select')
          or has_table_privilege(r.oid, 'seriatim.sqs_secret', 'select'))";
    assert_eq!(sqs.number(revoked).await, 0);
    // Roles are the server's, not the database's.
    let drop =
        roles.iter().rev().map(|role| format!("drop owned by {0}; drop role {0};", name(role)));
    let drop: String = drop.collect();
    let database = sqs.database.connect().await.unwrap();
    let mut database = database;
    sqlx::raw_sql(sqlx::AssertSqlSafe(drop)).execute(&mut database).await.unwrap();
    drop_connection(database).await;
    sqs.end().await;
}

async fn drop_connection(connection: sqlx::PgConnection) {
    use sqlx::Connection as _;
    connection.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_signatures_no_browser_and_no_other_name_is_answered() {
    let sqs = Sqs::start().await;
    let with = |name: &'static str, value: &str| {
        let mut request: Request<_> = sqs.request("ListQueues", &json!({}));
        request.headers_mut().insert(name, value.parse().unwrap());
        sqs.send(request)
    };
    assert_eq!(with("x-other", "x").await.status, 200);
    assert_eq!(with("origin", "https://example.com").await.status, 403);
    assert_eq!(with("sec-fetch-site", "cross-site").await.status, 403);
    assert_eq!(with("host", "example.com").await.status, 403);
    // Any signature will do.
    let signed = ask(&sqs, ("x", "y"), "ListQueues", json!({})).await;
    assert_eq!(signed.status, 200);

    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let config = Config::new().access(Access::Anonymous);
    let refused = serve(listener, sqs.database.pool().clone(), config, async {}).await;
    assert!(matches!(refused, Err(ServeError::NotLoopback(_))), "{refused:?}");
    sqs.end().await;
}

/// Clients in other containers name the server as they know it.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_for_anyone_has_any_name_and_address() {
    let sqs = Sqs::start_with(Config::new().access(Access::Anyone), 10).await;
    let with = |name: &'static str, value: &'static str| {
        let mut request = sqs.request("ListQueues", &json!({}));
        request.headers_mut().insert(name, value.parse().unwrap());
        sqs.send(request)
    };
    assert_eq!(with("host", "sqs:9324").await.status, 200);
    assert_eq!(with("origin", "https://example.com").await.status, 403);
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let config = Config::new().access(Access::Anyone);
    serve(listener, sqs.database.pool().clone(), config, async {}).await.unwrap();
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_the_settings_signs_beside_those_of_the_schema() {
    let config = Config::new().key("test", "of the environment");
    assert!(!format!("{config:?}").contains("of the environment"), "{config:?}");
    let sqs = Sqs::start_with(config, 10).await;
    let stored = Keys::new(sqs.database.pool(), &Client::default()).add(None).await.unwrap();
    for key in [("test", "of the environment"), (&*stored.access_key, &*stored.secret)] {
        assert_eq!(ask(&sqs, key, "ListQueues", json!({})).await.status, 200);
    }
    for (key, name) in [
        (("test", "another"), "InvalidSignatureException"),
        (("other", "of the environment"), "UnrecognizedClientException"),
    ] {
        let refused = ask(&sqs, key, "ListQueues", json!({})).await;
        assert_eq!((refused.status, &*error(&refused)), (403, name));
    }
    for (access_key, secret) in [("", "secret"), ("id", ""), ("a b", "secret")] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let config = Config::new().key(access_key, secret);
        let refused = serve(listener, sqs.database.pool().clone(), config, async {}).await;
        assert!(matches!(refused, Err(ServeError::Key)), "{refused:?}");
    }
    sqs.end().await;
}

/// Queues of another account do not exist, however they are named.
#[tokio::test(flavor = "multi_thread")]
async fn queues_of_other_accounts_do_not_exist() {
    let own = "123456789012";
    let sqs = Sqs::start_with(Config::new().access(Access::Anonymous).account(own), 10).await;
    sqs.queue("dead").await;
    let url = sqs.queue("q").await;
    let source = arn(own, "dead");
    sqs.call("SetQueueAttributes", json!({"QueueUrl": url, "Attributes": policy(own)})).await;
    let (their_url, their_dead) = (url.replace(own, "111111111111"), arn("111111111111", "dead"));
    let receipt = "r";
    for (operation, mut input) in [
        ("SendMessage", json!({"MessageBody": "b"})),
        ("SendMessageBatch", json!({"Entries": [{"Id": "1", "MessageBody": "b"}]})),
        ("ReceiveMessage", json!({})),
        ("DeleteMessage", json!({"ReceiptHandle": receipt})),
        ("ChangeMessageVisibility", json!({"ReceiptHandle": receipt, "VisibilityTimeout": 0})),
        ("GetQueueAttributes", json!({"AttributeNames": ["All"]})),
        ("SetQueueAttributes", json!({"Attributes": {"DelaySeconds": "1"}})),
        ("TagQueue", json!({"Tags": {"a": "b"}})),
        ("ListDeadLetterSourceQueues", json!({})),
        ("AddPermission", json!({"Label": "l", "AWSAccountIds": [own], "Actions": ["*"]})),
        ("PurgeQueue", json!({})),
        ("DeleteQueue", json!({})),
    ] {
        input["QueueUrl"] = their_url.clone().into();
        let (error, text) = sqs.refusal(operation, input).await;
        assert_eq!(error, "QueueDoesNotExist", "{operation}");
        assert!(text.contains("account \"111111111111\"") && text.contains(own), "{text}");
    }
    let path = their_url.strip_prefix(&format!("http://{}", sqs.address)).unwrap();
    let query = sqs.query(path, &[("Action", "SendMessage"), ("MessageBody", "b")]).await;
    assert!(query.body.contains("AWS.SimpleQueueService.NonExistentQueue"), "{}", query.body);
    for (owner, found) in [(own, true), ("111111111111", false)] {
        let input = json!({"QueueName": "q", "QueueOwnerAWSAccountId": owner});
        assert_eq!(sqs.ask("GetQueueUrl", input).await.status == 200, found, "{owner}");
        let fields =
            [("Action", "GetQueueUrl"), ("QueueName", "q"), ("QueueOwnerAWSAccountId", owner)];
        assert_eq!(sqs.query("/", &fields).await.status == 200, found, "{owner}");
    }
    let (error, text) = sqs
        .refusal(
            "SetQueueAttributes",
            json!({"QueueUrl": url, "Attributes": policy("111111111111")}),
        )
        .await;
    assert_eq!(error, "InvalidParameterValueException");
    assert!(text.ends_with("Dead-letter target owner should be same as the source."), "{text}");
    for input in [
        json!({"SourceArn": their_dead}),
        json!({"SourceArn": source, "DestinationArn": arn("111111111111", "q")}),
    ] {
        let (error, _) = sqs.refusal("StartMessageMoveTask", input).await;
        assert_eq!(error, "ResourceNotFoundException");
    }
    sqs.call("StartMessageMoveTask", json!({"SourceArn": source})).await;
    // The name alone is enough, and the host does not matter.
    for address in ["q", "https://sqs.us-east-1.amazonaws.com/123456789012/q"] {
        sqs.call("SendMessage", json!({"QueueUrl": address, "MessageBody": "b"})).await;
    }
    sqs.end().await;
}

fn arn(account: &str, queue: &str) -> String {
    format!("arn:aws:sqs:us-east-1:{account}:{queue}")
}

fn policy(account: &str) -> Value {
    let policy = json!({"deadLetterTargetArn": arn(account, "dead"), "maxReceiveCount": 3});
    json!({"RedrivePolicy": policy.to_string()})
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_make_no_addresses_are_refused_at_the_start() {
    let sqs = Sqs::start().await;
    let refused = async |config: Config| {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        serve(listener, sqs.database.pool().clone(), config, async {}).await.unwrap_err()
    };
    let error = refused(Config::new().account("12")).await;
    assert_eq!(error.to_string(), "the account \"12\" must be 12 digits, such as 000000000000");
    let error = refused(Config::new().public_url("sqs.example.com")).await;
    assert!(matches!(&error, ServeError::PublicUrl(_)), "{error}");
    assert!(error.to_string().contains("such as https://sqs.example.com"), "{error}");
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn health_is_told_without_a_signature() {
    let sqs = Sqs::start_with(Config::new(), 10).await;
    let ask = |method: &'static str, path: &'static str| {
        let request = Request::builder().method(method).header("host", &sqs.address);
        let request = request.uri(format!("http://{}{path}", sqs.address));
        sqs.send(request.body(Full::<Bytes>::default()).unwrap())
    };
    let health = ask("GET", "/health").await;
    assert_eq!((health.status, &*health.body), (200, "ok\n"));
    // It may be a queue's address.
    for (method, path) in [("POST", "/health"), ("GET", "/health?Action=ReceiveMessage")] {
        assert_eq!(ask(method, path).await.status, 403);
    }
    sqs.end().await;
}
