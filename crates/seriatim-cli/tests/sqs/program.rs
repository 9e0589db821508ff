//! A random program: who sends and receives, and what is disturbed when.

use fastrand::Rng;

use crate::size::size;

#[derive(Debug, Clone)]
pub struct Program {
    pub seed: u64,
    pub groups: u8,
    /// Each sends so many messages by SQS.
    pub producers: Vec<usize>,
    /// And so many by SQL; 0: there is no such producer.
    pub by_sql: usize,
    pub consumers: usize,
    /// Whether a processor of the library runs jobs of the same queue.
    pub processor: bool,
    /// Each after so many milliseconds.
    pub acts: Vec<(u64, Act)>,
    pub sabotage: Option<Sabotage>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// SIGKILL of an SQS server, and a new one.
    KillServer(usize),
    /// All connections of the clients to a server are reset.
    Cut(usize),
    /// Nothing gets through to a server for so many milliseconds, and then the connections are
    /// reset.
    Hang(usize, u64),
    /// A consumer ends without a word, and another one begins.
    KillConsumer(usize),
    /// SIGKILL of the postmaster, and a new one.
    KillPostgres,
    /// An immediate shutdown, and a start.
    CrashPostgres,
    /// An immediate shutdown of the primary, and its standby takes over.
    FailOver,
}

/// A fault made on purpose, to see that it is noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// A consumer deletes another message than it handled.
    WrongHandle,
    /// Consumers handle a message for longer than it is theirs.
    Overstay,
    /// Consumers handle the messages of a receive from the last to the first.
    Reversed,
    /// Producers repeat a message under another deduplication id.
    FreshIds,
}

/// The program of a seed; `size` times as long as usual.
pub fn generate(seed: u64, size: usize) -> Program {
    let mut random = Rng::with_seed(seed);
    let consumers = random.usize(2..5);
    let acts = (0..6 * size).map(|_| {
        let after = random.u64(200..900);
        let act = match random.u32(0..12) {
            0..3 => Act::KillServer(random.usize(..2)),
            3..5 => Act::Cut(random.usize(..2)),
            5 => Act::Hang(random.usize(..2), random.u64(50..1500)),
            6..9 => Act::KillConsumer(random.usize(..consumers)),
            9..11 => Act::KillPostgres,
            _ => Act::CrashPostgres,
        };
        (after, act)
    });
    let acts = acts.collect();
    Program {
        seed,
        groups: random.u8(2..20),
        producers: (0..random.usize(1..4)).map(|_| random.usize(40..120) * size).collect(),
        by_sql: if random.bool() { random.usize(30..80) * size } else { 0 },
        consumers,
        processor: random.bool(),
        acts,
        sabotage: None,
    }
}

/// Returns the program of a seed, in which a standby takes over. A plain run disturbs nothing else,
/// and has no processor: the claims of a processor would wait for 15 s after the failover.
pub fn failing_over(seed: u64) -> Program {
    let mut program = generate(seed, 1);
    program.acts.retain(|(_, act)| !matches!(act, Act::KillPostgres | Act::CrashPostgres));
    program.acts.truncate(size(0, usize::MAX));
    program.processor &= size(false, true);
    program.acts.insert(program.acts.len().min(2), (500, Act::FailOver));
    program
}

/// A short program without disturbances, broken on purpose.
pub fn broken(sabotage: Sabotage) -> Program {
    Program {
        seed: 1,
        groups: 2,
        // Each message that is deleted in another one's place costs a visibility.
        producers: vec![if sabotage == Sabotage::WrongHandle { size(10, 20) } else { 20 }],
        by_sql: 0,
        consumers: 3,
        processor: false,
        acts: Vec::new(),
        sabotage: Some(sabotage),
    }
}
