//! A network that can be cut: a proxy in front of the server that stops forwarding without a word.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

#[derive(Debug, Clone)]
pub struct Proxy {
    cut: Arc<watch::Sender<bool>>,
    options: PgConnectOptions,
}

impl Proxy {
    /// The name of its sessions in `pg_stat_activity`.
    pub const NAME: &str = "through the proxy";

    /// A proxy in front of the database at `url`. It cuts itself before it forwards, for the first
    /// time, something of a client's with `fatal` in it.
    pub async fn start(url: &str, fatal: Option<&'static str>) -> Self {
        let server: PgConnectOptions = url.parse().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let proxy = Self {
            cut: Arc::new(watch::channel(false).0),
            options: server.clone().port(port).application_name(Self::NAME),
        };
        let (cut, tripped) = (Arc::clone(&proxy.cut), Arc::new(AtomicBool::new(false)));
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let address = (server.get_host(), server.get_port());
                let Ok(server) = TcpStream::connect(address).await else {
                    continue;
                };
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                let (sender, tripped) = (Arc::clone(&cut), Arc::clone(&tripped));
                let look = move |bytes: &[u8]| {
                    let found = fatal.is_some_and(|fatal| contains(bytes, fatal));
                    if found && !tripped.swap(true, Ordering::SeqCst) {
                        sender.send_replace(true);
                    }
                };
                tokio::spawn(forward(from_client, to_server, cut.subscribe(), look));
                tokio::spawn(forward(from_server, to_client, cut.subscribe(), |_| {}));
            }
        });
        proxy
    }

    /// From now on nothing gets through, not even the end of a connection.
    pub fn cut(&self) {
        self.cut.send_replace(true);
    }

    /// Waits until it has cut itself.
    pub async fn is_cut(&self) {
        self.cut.subscribe().wait_for(|cut| *cut).await.unwrap();
    }

    /// Lets everything through again, and the data that was held back.
    pub fn mend(&self) {
        self.cut.send_replace(false);
    }

    /// A pool through the proxy.
    pub async fn pool(&self, pool: PgPoolOptions) -> PgPool {
        pool.connect_with(self.options.clone()).await.unwrap()
    }
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|part| part == text.as_bytes())
}

async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut cut: watch::Receiver<bool>,
    look: impl Fn(&[u8]),
) {
    let mut buffer = vec![0; 65_536];
    loop {
        let read = from.read(&mut buffer).await.unwrap_or(0);
        look(&buffer[..read]);
        if cut.wait_for(|cut| !*cut).await.is_err() {
            return;
        }
        if read == 0 || to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
