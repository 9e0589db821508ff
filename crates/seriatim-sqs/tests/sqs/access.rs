//! Who may ask: signed requests, roles, and servers without signatures.

use std::time::{Duration, Instant, SystemTime};

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4::SigningParams;
use http_body_util::Full;
use hyper::Request;
use hyper::body::Bytes;
use serde_json::{Value, json};
use seriatim::Client;
use seriatim_sqs::{Access, Config, Keys, ServeError, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

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
    while ask(&sqs, own, "ListQueues", json!({})).await.status != 403 {
        assert!(removed.elapsed() < Duration::from_secs(1), "a key that was removed still counts");
    }
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_poll_of_a_removed_key_gets_nothing() {
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
        assert!(keys.remove(removed.0).await.unwrap());
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
