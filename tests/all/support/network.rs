//! A network between a client and the server that delays, goes silent, resets or refuses, and can
//! lead to another server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::sleep;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weather {
    Fair,
    /// Each piece comes so much later.
    Slow(Duration),
    /// So many bytes a second, in each direction of each connection.
    Narrow(u32),
    /// Nothing gets through, not even the end of a connection.
    Silent,
    /// Open connections are reset, and no new one is let in.
    Broken,
    /// Open connections stay, and new ones are refused, as by a server that is down.
    Refusing,
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
        let (weather, target) = (network.weather.subscribe(), network.target.subscribe());
        tokio::spawn(serve(listener, network.port, weather, target));
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

async fn serve(
    listener: TcpListener,
    port: u16,
    weather: watch::Receiver<Weather>,
    target: watch::Receiver<SocketAddr>,
) {
    let mut listener = Some(listener);
    let mut seen = weather.clone();
    loop {
        let Some(open) = &listener else {
            if seen.wait_for(|weather| *weather != Weather::Refusing).await.is_err() {
                return;
            }
            listener = Some(TcpListener::bind(("127.0.0.1", port)).await.unwrap());
            continue;
        };
        tokio::select! {
            Ok((client, _)) = open.accept() => {
                tokio::spawn(connect(client, *target.borrow(), weather.clone()));
            }
            refuses = seen.wait_for(|weather| *weather == Weather::Refusing) => {
                if refuses.is_err() {
                    return;
                }
                listener = None;
            }
        }
    }
}

fn address(url: &str) -> SocketAddr {
    let options: PgConnectOptions = url.parse().unwrap();
    SocketAddr::new(options.get_host().parse().unwrap(), options.get_port())
}

async fn connect(mut client: TcpStream, target: SocketAddr, mut weather: watch::Receiver<Weather>) {
    if *weather.borrow() == Weather::Broken {
        let _ = client.set_zero_linger();
        return;
    }
    let Ok(mut server) = TcpStream::connect(target).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let is_broken = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let there = forward(from_client, to_server, weather.clone());
        let back = forward(from_server, to_client, weather.clone());
        tokio::select! {
            () = there => false,
            () = back => false,
            _ = weather.wait_for(|weather| *weather == Weather::Broken) => true,
        }
    };
    if is_broken {
        // A reset rather than an end, which lets the last words through.
        let _ = (client.set_zero_linger(), server.set_zero_linger());
    }
}

async fn forward(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    mut weather: watch::Receiver<Weather>,
) {
    let mut buffer = vec![0; 65_536];
    let mut owed = Duration::ZERO;
    loop {
        let read = from.read(&mut buffer).await.unwrap_or(0);
        let Ok(now) = weather.wait_for(|weather| *weather != Weather::Silent).await.map(|w| *w)
        else {
            return;
        };
        match now {
            Weather::Slow(delay) => sleep(delay).await,
            Weather::Narrow(rate) => {
                // Short sleeps come late: what is owed adds up.
                let read = u32::try_from(read).unwrap_or(u32::MAX);
                owed += Duration::from_secs_f64(f64::from(read) / f64::from(rate));
                if owed > Duration::from_millis(10) {
                    let began = Instant::now();
                    sleep(owed).await;
                    owed = owed.saturating_sub(began.elapsed());
                }
            }
            _ => {}
        }
        if read == 0 || to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
