//! `seriatim serve sqs` behind a proxy with TLS, as docs/guide/sqs-security.md has it.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::{Duration, sleep};

use crate::support::{Cli, DONE, PATIENCE, Served};

/// The name of the proxy in the guide.
const NAME: &str = "sqs.example.com";

/// Returns whether these programs are there. Otherwise it says that a test is skipped.
fn are_there(programs: &[&str]) -> bool {
    let folders: Vec<PathBuf> = std::env::var_os("PATH")
        .iter()
        .flat_map(std::env::split_paths)
        .chain(["/usr/sbin".into()])
        .collect();
    let is_missing = |program: &&&str| !folders.iter().any(|folder| folder.join(program).is_file());
    let missing = programs.iter().find(is_missing);
    if let Some(missing) = missing {
        eprintln!("SKIPPED: the proxy was not tried: {missing} is not installed");
    }
    missing.is_none()
}

/// Returns the block of the guide in a language.
fn of_the_guide(language: &str) -> String {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/sqs-security.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, block) = page.split_once(&format!("```{language}\n")).unwrap();
    block.split_once("```").unwrap().0.to_owned()
}

/// Replaces a text that must be there.
fn with(text: &str, replaced: &str, by: &str) -> String {
    assert!(text.contains(replaced), "{replaced} in {text}");
    text.replace(replaced, by)
}

/// A server, and a proxy of TLS before it.
struct Proxied {
    cli: Cli,
    server: Served,
    proxy: Child,
    folder: TempDir,
    port: u16,
    key: Value,
}

impl Proxied {
    /// Starts both. `proxy` starts the proxy on a port, with a folder that has the certificate
    /// `cert.pem` and its key `key.pem`, before the server of an address.
    async fn start(proxy: impl FnOnce(&Path, u16, &str) -> Command) -> Self {
        let cli = Cli::new().await;
        let add = ["sqs", "key", "add", "--queues", "orders*", "--json"];
        let key = cli.ends(DONE, &add).await.json().remove(0);
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let url = format!("https://{NAME}:{port}");
        let serve = ["serve", "sqs", "--listen", "127.0.0.1:0", "--json", "--metrics"];
        let mut server = cli.command(&[&serve[..], &["--public-url", &url]].concat());
        let server = Served::start(&mut server).await;
        let (_, server_port) =
            server.text("endpoint").trim_end_matches('/').rsplit_once(':').unwrap();

        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name).display().to_string();
        let certificate = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj"])
            .arg(format!("/CN={NAME}"))
            .args(["-addext", &format!("subjectAltName=DNS:{NAME}")])
            .args(["-keyout", &file("key.pem"), "-out", &file("cert.pem")])
            .output();
        let certificate = certificate.await.unwrap();
        let error = String::from_utf8_lossy(&certificate.stderr);
        assert!(certificate.status.success(), "{error}");
        let mut proxy = proxy(folder.path(), port, &format!("127.0.0.1:{server_port}"));
        let log = fs::File::create(file("proxy.log")).unwrap();
        let proxy = proxy.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).kill_on_drop(true);
        let mut proxy = proxy.spawn().unwrap();
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            let log = fs::read_to_string(file("proxy.log")).unwrap();
            assert!(proxy.try_wait().unwrap().is_none() && begun.elapsed() < PATIENCE, "{log}");
            sleep(Duration::from_millis(20)).await;
        }
        Self { cli, server, proxy, folder, port, key }
    }

    /// Runs curl by TLS. Returns the status and the body.
    async fn curl(&self, path: &str, more: &[&str]) -> (u16, String) {
        let certificate = self.folder.path().join("cert.pem").display().to_string();
        let asked = Command::new("curl")
            .args(["--silent", "--show-error", "--cacert", &certificate, "--max-time", "40"])
            .args(["--resolve", &format!("{NAME}:{}:127.0.0.1", self.port)])
            .args(["--write-out", "\n%{http_code}"])
            .args(more)
            .arg(format!("https://{NAME}:{}{path}", self.port))
            .output();
        let asked = asked.await.unwrap();
        let (out, error) =
            (String::from_utf8(asked.stdout).unwrap(), String::from_utf8_lossy(&asked.stderr));
        assert!(asked.status.success(), "{error}");
        let (body, status) = out.rsplit_once('\n').unwrap();
        (status.parse().unwrap(), body.to_owned())
    }

    /// A request that curl signs.
    async fn ask(&self, operation: &str, input: &Value) -> (u16, Value) {
        let body = self.folder.path().join("body.json");
        fs::write(&body, input.to_string()).unwrap();
        let text = |field: &str| self.key[field].as_str().unwrap();
        let (target, key) = (
            format!("X-Amz-Target: AmazonSQS.{operation}"),
            format!("{}:{}", text("access_key"), text("secret")),
        );
        let data = format!("@{}", body.display());
        let (status, answer) = self
            .curl(
                "/",
                &[
                    "--aws-sigv4",
                    "aws:amz:us-east-1:sqs",
                    "--user",
                    &key,
                    "--header",
                    &target,
                    "--header",
                    "Content-Type: application/x-amz-json-1.0",
                    "--data-binary",
                    &data,
                ],
            )
            .await;
        (status, serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{answer}")))
    }

    async fn call(&self, operation: &str, input: Value) -> Value {
        let (status, answer) = self.ask(operation, &input).await;
        assert_eq!(status, 200, "{operation}: {answer}");
        answer
    }

    /// Sends and receives through the proxy, as clients do.
    async fn is_sound(&self) {
        let made = self.call("CreateQueue", json!({"QueueName": "orders"})).await;
        let url = made["QueueUrl"].as_str().unwrap();
        assert_eq!(url, format!("https://{NAME}:{}/000000000000/orders", self.port));
        // The second is of 2 MB as JSON: larger than the limit of nginx by default.
        for body in ["small", &"\"".repeat(1_000_000)] {
            let message = json!({"QueueUrl": url, "MessageBody": body});
            let sent = self.call("SendMessage", message).await;
            let receive = json!({"QueueUrl": url, "WaitTimeSeconds": 20});
            let received = self.call("ReceiveMessage", receive).await["Messages"][0].take();
            assert_eq!(received["MessageId"], sent["MessageId"]);
            assert_eq!(received["Body"], body);
            let handle = &received["ReceiptHandle"];
            let delete = json!({"QueueUrl": url, "ReceiptHandle": handle});
            self.call("DeleteMessage", delete).await;
        }
        // A long poll that finds nothing comes to its own end.
        let receive = json!({"QueueUrl": url, "WaitTimeSeconds": 2});
        assert_eq!(self.call("ReceiveMessage", receive).await, json!({}));
        let (status, refused) = self.ask("CreateQueue", &json!({"QueueName": "mail"})).await;
        assert_eq!(status, 403, "{refused}");
        assert!(refused["__type"].as_str().unwrap().ends_with("AccessDeniedException"));
        let (status, unsigned) = self.curl("/?Action=ListQueues", &[]).await;
        assert_eq!(status, 403, "{unsigned}");
        assert_eq!(self.curl("/health", &[]).await, (200, String::from("ok\n")));
        // Metrics are not for the world.
        assert_eq!(self.curl("/metrics", &[]).await.0, 404);
    }

    async fn end(mut self) {
        self.proxy.kill().await.unwrap();
        self.server.interrupt().await;
        self.cli.remove().await;
    }
}

/// nginx with the guide's file, changed by `change`, in a folder.
fn nginx(folder: &Path, port: u16, server: &str, change: impl Fn(&str) -> String) -> Command {
    let shown = folder.display();
    let conf = of_the_guide("nginx");
    let conf = with(&conf, "listen 443 ", &format!("listen 127.0.0.1:{port} "));
    let conf = with(&conf, "127.0.0.1:9324", server);
    let conf = with(&conf, "/etc/ssl/sqs.example.com.pem", &format!("{shown}/cert.pem"));
    let conf = with(&conf, "/etc/ssl/private/sqs.example.com.key", &format!("{shown}/key.pem"));
    fs::write(folder.join("sqs.conf"), change(&conf)).unwrap();
    let temporary = ["client_body", "proxy", "fastcgi", "scgi", "uwsgi"];
    let temporary = temporary.map(|of| format!("{of}_temp_path {shown}/{of};\n")).concat();
    let around = format!(
        "daemon off;\nmaster_process off;\npid {shown}/pid;\nerror_log stderr;\nevents {{}}\n\
         http {{\naccess_log off;\n{temporary}include {shown}/sqs.conf;\n}}\n"
    );
    fs::write(folder.join("nginx.conf"), around).unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut nginx = Command::new("sh");
    nginx.args(["-c", "exec nginx -e stderr -p . -c nginx.conf"]).current_dir(folder);
    nginx.env("PATH", format!("{path}:/usr/sbin"));
    nginx
}

#[tokio::test]
async fn nginx_before_the_server_as_the_guide_has_it() {
    if !are_there(&["nginx", "openssl", "curl"]) {
        return;
    }
    let proxied =
        Proxied::start(|folder, port, server| nginx(folder, port, server, str::to_owned)).await;
    proxied.is_sound().await;
    proxied.end().await;
    // Without the port, it is another host than the one that was signed.
    let without_port = |conf: &str| with(conf, "$http_host", "$host");
    let proxied =
        Proxied::start(|folder, port, server| nginx(folder, port, server, without_port)).await;
    let (status, refused) = proxied.ask("ListQueues", &json!({})).await;
    assert_eq!(status, 403, "{refused}");
    assert!(refused["__type"].as_str().unwrap().ends_with("InvalidSignatureException"));
    proxied.end().await;
}

#[tokio::test]
async fn caddy_before_the_server_as_the_guide_has_it() {
    if !are_there(&["caddy", "openssl", "curl"]) {
        return;
    }
    let proxied = Proxied::start(|folder, port, server| {
        let shown = folder.display();
        let site = format!("{NAME}:{port} {{\n\ttls {shown}/cert.pem {shown}/key.pem\n");
        let conf = with(&of_the_guide("caddyfile"), "sqs.example.com {\n", &site);
        let conf = with(&conf, "127.0.0.1:9324", server);
        let global = "{\n\tadmin off\n\tauto_https disable_redirects\n}\n";
        fs::write(folder.join("Caddyfile"), global.to_owned() + &conf).unwrap();
        let mut caddy = Command::new("caddy");
        caddy.args(["run", "--config", "Caddyfile", "--adapter", "caddyfile"]).current_dir(folder);
        caddy.env("HOME", folder).env("XDG_DATA_HOME", folder).env("XDG_CONFIG_HOME", folder);
        caddy
    });
    let proxied = proxied.await;
    proxied.is_sound().await;
    proxied.end().await;
}
