//! A command on several servers: on the one that is named, on that of its job, or on each in turn.

use seriatim::shards::ShardId;

use crate::args::{Cli, Command, Global, NumberedServer, Served, numbered};
use crate::commands;
use crate::failure::Failure;
use crate::output::text::count;
use crate::output::{self, Form, line, remark, tell_shard};

/// Runs the command: on the server of the URL, or on those that have numbers.
pub(crate) async fn run(cli: Cli) -> Result<(), Failure> {
    let Cli { mut global, command } = cli;
    let given = std::mem::take(&mut global.server);
    // Boxed: a command may have a large future.
    if command.needs_no_server() {
        return Box::pin(commands::run(global, command, None)).await;
    }
    let servers = numbered(&given).map_err(Failure::Usage)?;
    if !servers.is_empty() {
        return Box::pin(run_on(servers, global, command)).await;
    }
    if global.shard.is_some() {
        return Err(usage("--shard names one of several servers: --server gives them"));
    }
    Box::pin(commands::run(global, command, None)).await
}

fn usage(sentence: &str) -> Failure {
    Failure::Usage(sentence.to_owned())
}

/// Runs the command. A server that fails is named, and the others are asked all the same.
async fn run_on(
    servers: Vec<NumberedServer>,
    global: Global,
    command: Command,
) -> Result<(), Failure> {
    if global.read_from.is_some() {
        return Err(usage(
            "--read-from or SERIATIM_READ_FROM is for one server: give it without --server and \
             SERIATIM_SERVERS",
        ));
    }
    let known = |shard: ShardId| servers.iter().any(|server| server.shard == shard);
    if let Some(shard) = global.shard.filter(|shard| !known(*shard)) {
        return Err(Failure::Usage(format!("no server is shard {shard}: --server names them")));
    }
    if let Command::Serve(serve) = &command
        && global.shard.is_none()
    {
        return match &serve.what {
            None => commands::serve::run_over(&global, serve.clone(), &servers).await,
            Some(Served::Sqs(served)) => commands::sqs::run_over(&global, served, &servers).await,
        };
    }
    if let Command::Maintain(maintain) = &command
        && global.shard.is_none()
    {
        return commands::maintain::run_over(&global, maintain, &servers).await;
    }
    if matches!(command, Command::Metrics) && global.shard.is_none() && !global.json {
        return commands::metrics::run_over(&global, &servers).await;
    }
    if command.is_for_one_server() && global.shard.is_none() && servers.len() > 1 {
        return Err(usage("this command works on one server: say which by --shard N"));
    }
    let form = if global.json { Form::Json } else { Form::Text };
    let wanted = servers.iter().filter(|server| global.shard.is_none_or(|of| server.shard == of));
    let asked: Vec<_> =
        wanted.filter_map(|server| Some((server, command.on(server.shard)?))).collect();
    let jobs = command.jobs();
    let is_sure = global.yes || global.dry_run || global.read_only || !command.changes();
    if !jobs.is_empty() && asked.len() > 1 && !is_sure {
        // The first server would commit before the second one is looked at.
        return Err(Failure::Refused(format!(
            "this changes {} on {} servers: --yes does it, --dry-run only shows it",
            count(u64::try_from(jobs.len()).unwrap_or(u64::MAX), "job"),
            asked.len()
        )));
    }
    let mut failures = Vec::new();
    for job in &jobs {
        let shard = ShardId::of_job(*job);
        if !asked.iter().any(|(server, _)| Some(server.shard) == shard) {
            let failure = nowhere(*job, shard.filter(|shard| known(*shard)));
            output::failure(form, &failure, (jobs.len() > 1).then_some(*job));
            failures.push(failure);
        }
    }
    let alone = asked.len() == 1;
    let mut done = 0;
    for (server, command) in asked {
        let NumberedServer { shard, url } = server.clone();
        tell_shard(Some(shard));
        if !alone && form == Form::Text {
            line(&format!("shard {shard}"))?;
        }
        let global = Global { database_url: Some(url), ..global.clone() };
        let one = match *command.jobs() {
            [job] if jobs.len() > 1 => Some(job),
            _ => None,
        };
        match commands::run(global, command, Some(shard)).await {
            Ok(()) => done += 1,
            Err(Failure::Closed) => return Err(Failure::Closed),
            Err(failure) => {
                if matches!(failure, Failure::NothingMatched(_)) && !alone && jobs.is_empty() {
                    remark(form, &failure.to_string());
                } else {
                    output::failure(form, &failure, one);
                }
                failures.push(failure);
            }
        }
    }
    tell_shard(None);
    let ended = if jobs.is_empty() { of_servers(done, failures) } else { of_jobs(done, failures) };
    ended.map_err(|failure| Failure::Told(Box::new(failure)))
}

/// Says that no server is asked for a job. `excluded` is the server that has given it its id.
fn nowhere(job: i64, excluded: Option<ShardId>) -> Failure {
    Failure::NothingMatched(match excluded {
        Some(shard) => format!("job {job} is on shard {shard}, and --shard names another one"),
        None => format!(
            "no server has given a job this id, {job}: its number is that of none of the servers"
        ),
    })
}

/// Returns how a command ends. It need not match something on each server.
fn of_servers(done: usize, failures: Vec<Failure>) -> Result<(), Failure> {
    let is_nothing = |failure: &Failure| matches!(failure, Failure::NothingMatched(_));
    let (mut nothing, mut failed): (Vec<_>, Vec<_>) = failures.into_iter().partition(is_nothing);
    match (failed.pop(), nothing.pop()) {
        (Some(failure), _) => Err(failure),
        (None, Some(nothing)) if done == 0 => Err(nothing),
        _ => Ok(()),
    }
}

/// Returns how a command with ids of jobs ends: as on one server. It is an error if only some of
/// them are changed; else the last failure decides.
fn of_jobs(done: usize, mut failures: Vec<Failure>) -> Result<(), Failure> {
    let partly = Failure::Error(String::from("not every job is changed"));
    let is_partial = |failure: &Failure| failure.code() == partly.code();
    let some = done > 0 || failures.iter().any(is_partial);
    match failures.pop() {
        None => Ok(()),
        Some(_) if some => Err(partly),
        Some(last) => Err(last),
    }
}
