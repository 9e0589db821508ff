//! A network between a client and the server that delays, goes silent, resets or refuses, and can
//! lead to another server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::sleep;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weather {
    Fair,
    /// Each piece comes so much later.
    Slow(Duration),
    /// Nothing gets through, not even the end of a connection.
    Silent,
    /// What is open is reset, and nothing new is let in.
    Broken,
}

#[derive(Debug, Clone)]
pub struct Network {
    weather: Arc<watch::Sender<Weather>>,
    target: Arc<watch::Sender<SocketAddr>>,
    port: u16,
}

impl Network {
    /// A network to the server of this URL.
    pub async fn to(url: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let network = Self {
            weather: Arc::new(watch::channel(Weather::Fair).0),
            target: Arc::new(watch::channel(address(url)).0),
            port: listener.local_addr().unwrap().port(),
        };
        let (weather, target) = (Arc::clone(&network.weather), network.target.subscribe());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (weather, target) = (weather.subscribe(), *target.borrow());
                tokio::spawn(connect(client, target, weather));
            }
        });
        network
    }

    pub fn is(&self, weather: Weather) {
        self.weather.send_replace(weather);
    }

    /// From now on it leads there.
    pub fn leads_to(&self, url: &str) {
        self.target.send_replace(address(url));
    }

    /// The URL of what `url` names, over this network.
    pub fn url(&self, url: &str) -> String {
        let port = address(url).port();
        url.replacen(&format!(":{port}/"), &format!(":{}/", self.port), 1)
    }
}

fn address(url: &str) -> SocketAddr {
    let options: PgConnectOptions = url.parse().unwrap();
    SocketAddr::new(options.get_host().parse().unwrap(), options.get_port())
}

async fn connect(client: TcpStream, target: SocketAddr, mut weather: watch::Receiver<Weather>) {
    // A reset rather than an end, whichever side closes first.
    let _ = client.set_zero_linger();
    if *weather.borrow() == Weather::Broken {
        return;
    }
    let Ok(server) = TcpStream::connect(target).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true), server.set_zero_linger());
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let there = forward(from_client, to_server, weather.clone());
    let back = forward(from_server, to_client, weather.clone());
    let broken = weather.wait_for(|weather| *weather == Weather::Broken);
    tokio::select! {
        () = there => {}
        () = back => {}
        _ = broken => {}
    }
}

async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut weather: watch::Receiver<Weather>,
) {
    let mut buffer = vec![0; 65_536];
    loop {
        let read = from.read(&mut buffer).await.unwrap_or(0);
        let Ok(now) = weather.wait_for(|weather| *weather != Weather::Silent).await.map(|w| *w)
        else {
            return;
        };
        if let Weather::Slow(delay) = now {
            sleep(delay).await;
        }
        if read == 0 || to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
