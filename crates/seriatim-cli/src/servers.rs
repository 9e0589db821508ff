//! A command on several servers: on the one that is named, on that of its job, or on each in turn.

use seriatim::shards::ShardId;

use crate::args::{Cli, Command, Global, NumberedServer};
use crate::commands;
use crate::failure::Failure;
use crate::output::{self, Form, line, remark, tell_shard};

/// Runs the command: on the server of the URL, or on those that have numbers.
pub(crate) async fn run(cli: Cli) -> Result<(), Failure> {
    let Cli { mut global, command } = cli;
    let servers = std::mem::take(&mut global.server);
    // Boxed: a command may have a large future.
    if servers.is_empty() || command.needs_no_server() {
        return Box::pin(commands::run(global, command, None)).await;
    }
    Box::pin(run_on(servers, global, command)).await
}

/// Runs the command. A server that fails is named, and the others are asked all the same.
async fn run_on(
    servers: Vec<NumberedServer>,
    global: Global,
    command: Command,
) -> Result<(), Failure> {
    let known = |shard: ShardId| servers.iter().any(|server| server.shard == shard);
    let twice = servers.iter().enumerate().find(|(place, server)| {
        servers.iter().take(*place).any(|earlier| earlier.shard == server.shard)
    });
    if let Some((_, server)) = twice {
        return Err(Failure::Usage(format!("shard {} is given twice", server.shard)));
    }
    if let Some(shard) = global.shard.filter(|shard| !known(*shard)) {
        return Err(Failure::Usage(format!("no server is shard {shard}: --server names them")));
    }
    if let Command::Serve(serve) = &command
        && serve.what.is_none()
        && global.shard.is_none()
    {
        return commands::serve::run_over(&global, serve.clone(), &servers).await;
    }
    if command.is_for_one_server() && global.shard.is_none() && servers.len() > 1 {
        return Err(Failure::Usage(String::from(
            "this command works on one server: say which by --shard N",
        )));
    }
    let form = if global.json { Form::Json } else { Form::Text };
    let wanted = servers.iter().filter(|server| global.shard.is_none_or(|of| server.shard == of));
    let asked: Vec<_> =
        wanted.filter_map(|server| Some((server, command.on(server.shard)?))).collect();
    let alone = asked.len() == 1;
    let (mut done, mut nothing, mut failed) = (0, None, None);
    for (server, command) in asked {
        let NumberedServer { shard, url } = server.clone();
        tell_shard(Some(shard));
        if !alone && form == Form::Text {
            line(&format!("shard {shard}"))?;
        }
        let global = Global { database_url: Some(url), ..global.clone() };
        match commands::run(global, command, Some(shard)).await {
            Ok(()) => done += 1,
            Err(Failure::Closed) => return Err(Failure::Closed),
            Err(failure @ Failure::NothingMatched(_)) => {
                if !alone {
                    remark(form, &failure.to_string());
                }
                nothing = Some(failure);
            }
            Err(failure) => {
                output::failure(form, &failure, None);
                failed = Some(Failure::Told(Box::new(failure)));
            }
        }
    }
    match (failed, nothing) {
        (Some(failure), _) => Err(failure),
        (None, Some(nothing)) if done == 0 && alone => Err(nothing),
        (None, Some(nothing)) if done == 0 => Err(Failure::Told(Box::new(nothing))),
        (None, None) if done == 0 => Err(Failure::NothingMatched(String::from(
            "no server has given a job this id: its number is that of none of the servers",
        ))),
        _ => Ok(()),
    }
}
