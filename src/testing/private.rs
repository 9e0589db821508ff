//! A private server: its files, its port, its process.

use std::env;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection};
use tokio::sync::Mutex;
use tokio::time::sleep;

use super::ServerError;
use super::blocking::blocking;
use super::cleanup::CleanupShell;
use super::user::{User, command};

/// Bounds a start or stop: recovery after a crash of a busy server takes seconds, everything else
/// less than one.
pub(super) const PATIENCE: Duration = Duration::from_mins(1);

/// Interval of checks: neither a process's end nor a server's readiness can be awaited here.
pub(super) const POLL: Duration = Duration::from_millis(10);

/// Settings that a test needs and a caller can override. `fsync` off spares the disk and still
/// keeps committed data when the server crashes; with `synchronous_commit` off it would not.
const SETTINGS: [(&str, &str); 4] = [
    ("fsync", "off"),
    ("max_connections", "300"),
    ("max_prepared_transactions", "20"),
    // TCP is enough, and a socket's path has a length limit that temporary folders can exceed.
    ("unix_socket_directories", ""),
];

/// Linux's file system in memory.
const MEMORY: &str = "/dev/shm";

/// The room that a server in memory needs: far more than the databases of one test have ever taken.
const ROOM_IN_MEMORY: u64 = 3 << 30;

/// The parts of a new server.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) binaries: PathBuf,
    pub(super) settings: Vec<(String, String)>,
    /// `None`: any free one.
    pub(super) port: Option<u16>,
    /// The port of the server that it is to be a standby of.
    pub(super) primary: Option<u16>,
}

#[derive(Debug)]
pub(super) struct Private {
    binaries: PathBuf,
    user: Option<User>,
    settings: Vec<(String, String)>,
    data: PathBuf,
    log: PathBuf,
    port: u16,
    postmaster: Mutex<Option<Child>>,
    /// `Some` until the drop.
    cleanup: Option<CleanupShell>,
}

impl Private {
    /// Starts a server on a new data directory. Returns it with its version.
    pub(super) async fn create(plan: Plan) -> Result<(Self, String), ServerError> {
        let port = plan.port;
        let mut server = blocking(move || Self::prepare(plan)).await?;
        // Another process can take the port between the search and the server's own bind.
        let mut tries = 20;
        loop {
            server.port = port.map_or_else(free_port, Ok)?;
            match server.start_once().await {
                Err(error) if port_is_taken(&error) && tries > 0 => tries -= 1,
                outcome => return outcome.map(|version| (server, version)),
            }
        }
    }

    fn prepare(plan: Plan) -> Result<Self, ServerError> {
        let Plan { binaries, settings, port: _, primary } = plan;
        let user = User::for_server()?;
        let mut builder = tempfile::Builder::new();
        builder.prefix("seriatim-postgresql-");
        let folder = memory_folder(&settings)
            .and_then(|memory| builder.tempdir_in(memory).ok())
            .map_or_else(|| builder.tempdir(), Ok)
            .map_err(ServerError::io("create a temporary folder"))?;
        let path =
            folder.path().canonicalize().map_err(ServerError::io("find the temporary folder"))?;
        if let Some(user) = user {
            user.own(&path)
                .map_err(ServerError::io("give the temporary folder to the server's user"))?;
        }
        let cleanup = CleanupShell::start(&path).map_err(ServerError::io("run `sh`"))?;
        // From here on the cleanup removes the folder.
        let _ = folder.keep();
        let server = Self {
            binaries,
            user,
            settings,
            data: path.join("data"),
            log: path.join("server.log"),
            port: 0,
            postmaster: Mutex::new(None),
            cleanup: Some(cleanup),
        };
        match primary {
            None => server.initdb()?,
            Some(primary) => server.copy(primary)?,
        }
        Ok(server)
    }

    fn initdb(&self) -> Result<(), ServerError> {
        let locale = ["-A", "trust", "-N", "-U", "postgres", "--locale=C", "-E", "UTF8"];
        self.make_data(&self.binaries.join("initdb"), &locale)
    }

    /// Makes the data of a standby of the server on a port.
    fn copy(&self, primary: u16) -> Result<(), ServerError> {
        let program = self.binaries.join("pg_basebackup");
        if !program.is_file() {
            return Err(ServerError::NoStandby { program });
        }
        let from = ["-h", "127.0.0.1", "-p", &primary.to_string(), "-U", "postgres"];
        self.make_data(&program, &[&from[..], &["-R", "-N", "-c", "fast"]].concat())
    }

    fn make_data(&self, program: &Path, arguments: &[&str]) -> Result<(), ServerError> {
        let output = command(program, self.user)
            .args(arguments)
            .arg("-D")
            .arg(&self.data)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| self.cannot_run(program, error))?;
        if output.status.success() {
            return Ok(());
        }
        let said = [output.stdout, output.stderr].concat();
        let output = end_of(&String::from_utf8_lossy(&said));
        Err(ServerError::Program { program: program.to_owned(), output })
    }

    pub(super) fn data_directory(&self) -> &Path {
        &self.data
    }

    pub(super) fn binaries(&self) -> &Path {
        &self.binaries
    }

    pub(super) fn settings(&self) -> &[(String, String)] {
        &self.settings
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}?sslmode=disable", self.port)
    }

    /// Starts the server if it is not running, and waits until it accepts connections.
    pub(super) async fn start(&self) -> Result<(), ServerError> {
        let begun = Instant::now();
        loop {
            match self.start_once().await {
                // The port is this server's, but another process may be probing whether it is free.
                Err(error) if port_is_taken(&error) && begun.elapsed() < PATIENCE => {
                    sleep(POLL).await;
                }
                outcome => return outcome.map(drop),
            }
        }
    }

    /// Returns the server's version.
    async fn start_once(&self) -> Result<String, ServerError> {
        let mut postmaster = self.postmaster.lock().await;
        let log_before = fs::metadata(&self.log).map_or(0, |log| log.len());
        if !is_running(postmaster.as_mut())? {
            *postmaster = Some(self.spawn()?);
        }
        let begun = Instant::now();
        loop {
            if !is_running(postmaster.as_mut())? {
                *postmaster = None;
                return Err(self.said_since(log_before));
            }
            match self.ask_version().await {
                Ok(Some(version)) => return Ok(version),
                Err(error) if begun.elapsed() > PATIENCE => {
                    return Err(ServerError::database("connect to the server that was started")(
                        error,
                    ));
                }
                // Another server has the port (this one is about to give up on it), or this one is
                // not up yet.
                Ok(None) | Err(_) => sleep(POLL).await,
            }
        }
    }

    fn spawn(&self) -> Result<Child, ServerError> {
        let program = self.binaries.join("postgres");
        let mut log = File::options();
        log.append(true).create(true);
        let log = log.open(&self.log).map_err(ServerError::io("open the server's log"))?;
        let log_too = log.try_clone().map_err(ServerError::io("open the server's log"))?;

        let mut command = command(&program, self.user);
        command
            .arg("-D")
            .arg(&self.data)
            .args(["-h", "127.0.0.1", "-p"])
            .arg(self.port.to_string());
        let defaults = SETTINGS.iter().map(|&(name, value)| (name, value));
        let callers = self.settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in defaults.chain(callers) {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        command
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(log_too)
            // A Ctrl-C is for the program that uses the server; the server ends after the program.
            .process_group(0)
            .spawn()
            .map_err(|error| self.cannot_run(&program, error))
    }

    /// Returns the version, if the server on the port is this one.
    async fn ask_version(&self) -> Result<Option<String>, sqlx::Error> {
        let ask = async {
            let mut connection = PgConnection::connect(&self.url("postgres")).await?;
            let (home, version): (String, String) = sqlx::query_as(
                "SELECT current_setting('data_directory'), current_setting('server_version')",
            )
            .fetch_one(&mut connection)
            .await?;
            connection.close().await?;
            Ok((Path::new(&home) == self.data).then_some(version))
        };
        tokio::time::timeout(Duration::from_secs(10), ask)
            .await
            .unwrap_or(Err(sqlx::Error::PoolTimedOut))
    }

    /// Stops the server with one of its three signals: `TERM` (smart), `INT` (fast), `QUIT`
    /// (immediate).
    pub(super) async fn stop(&self, signal: &str) -> Result<(), ServerError> {
        // The child stays in its place until it is gone, in case this future is dropped.
        let mut postmaster = self.postmaster.lock().await;
        if let Some(child) = postmaster.as_mut() {
            send_signal(child.id(), signal)?;
            let begun = Instant::now();
            while is_running(Some(&mut *child))? {
                if begun.elapsed() > PATIENCE {
                    child.kill().map_err(ServerError::io("kill the server"))?;
                }
                sleep(POLL).await;
            }
        }
        *postmaster = None;
        Ok(())
    }

    fn cannot_run(&self, program: &Path, error: std::io::Error) -> ServerError {
        let whom = match self.user {
            Some(_) => {
                " as `postgres` or `nobody` (not as root; that user must be able to read it)"
            }
            None => "",
        };
        ServerError::io(format!("run `{}`{whom}", program.display()))(error)
    }

    fn said_since(&self, position: u64) -> ServerError {
        let mut said = Vec::new();
        // If the log cannot be read, the end of the server is still worth reporting.
        let _ = File::open(&self.log).and_then(|mut log| {
            log.seek(SeekFrom::Start(position))?;
            log.read_to_end(&mut said)
        });
        ServerError::Program {
            program: self.binaries.join("postgres"),
            output: end_of(&String::from_utf8_lossy(&said)),
        }
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        let cleanup = self.cleanup.take();
        let postmaster = self.postmaster.get_mut().take();
        // Not here: this may be inside a runtime. If no thread starts, the cleanup acts all the
        // same; the thread only waits for the two, so that they do not stay as zombies.
        let _ = std::thread::Builder::new().name("seriatim-reaper".into()).spawn(move || {
            if let Some(cleanup) = cleanup {
                cleanup.release();
            }
            postmaster.map(|mut child| child.wait())
        });
    }
}

fn is_running(child: Option<&mut Child>) -> Result<bool, ServerError> {
    let Some(child) = child else { return Ok(false) };
    let status = child.try_wait().map_err(ServerError::io("watch the server"))?;
    Ok(status.is_none())
}

/// Uses the shell's own `kill`: small containers have no program of that name.
fn send_signal(pid: u32, signal: &str) -> Result<(), ServerError> {
    Command::new("sh")
        .args(["-c", "kill -s \"$1\" \"$2\"", "sh", signal, &pid.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // A failure means that the server is gone already, as the caller wants.
        .status()
        .map(drop)
        .map_err(ServerError::io("run `sh`"))
}

/// Returns the folder in memory, if there is room and the server needs no disk.
///
/// A database is some 300 files, and making and deleting them on a disk takes half of a short
/// test's time.
/// A server with `fsync` is to be as slow as its disk. A caller who sets `TMPDIR` has chosen a
/// place.
fn memory_folder(settings: &[(String, String)]) -> Option<PathBuf> {
    let durable = settings.iter().any(|(name, value)| name == "fsync" && value != "off");
    if durable || env::var_os("TMPDIR").is_some() {
        return None;
    }
    let memory = fs::read_to_string("/proc/meminfo").ok()?;
    let free = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    // Docker's own /dev/shm has 64 MB.
    let room = Command::new("df").args(["-Pk", MEMORY]).stdin(Stdio::null()).output().ok()?;
    let room = String::from_utf8(room.stdout).ok()?;
    let room = room.lines().nth(1)?.split_whitespace().nth(3)?;
    [free.split_whitespace().next()?, room]
        .iter()
        .all(|kib| kib.parse::<u64>().is_ok_and(|kib| kib << 10 >= ROOM_IN_MEMORY))
        .then(|| PathBuf::from(MEMORY))
}

/// Below the ports that systems give to outgoing connections, so that a stopped server's port stays
/// free.
fn free_port() -> Result<u16, ServerError> {
    (0..200)
        .map(|_| fastrand::u16(15_000..32_000))
        .find(|&port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok())
        .ok_or_else(|| ServerError::io("find a free port")(std::io::ErrorKind::AddrInUse.into()))
}

fn port_is_taken(error: &ServerError) -> bool {
    matches!(error, ServerError::Program { output, .. } if output.contains("could not create any TCP/IP sockets"))
}

/// Returns the last lines of a program's output.
fn end_of(said: &str) -> String {
    let lines: Vec<&str> = said.trim().lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}
