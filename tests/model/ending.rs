//! Everything ends: from every reachable state.
//!
//! Stateright's `eventually` misses a run that goes round in a circle, and here many do: a worker
//! polls again, a lease is extended. So the graph is walked here. From every state, one in which
//! all has ended must be reachable by ordinary steps alone: no fault, no request and no producer
//! has to help. Then a fair run, which takes in the end each step that stays possible, ends every
//! job.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use stateright::Model;

use crate::story::Told;

/// A model whose jobs all end.
pub trait Ends: Told<State: Hash> {
    /// Returns whether nothing is left to be done.
    fn ended(&self, state: &Self::State) -> bool;

    /// Returns whether the action happens in the end if it stays possible: no fault, and no choice
    /// of a producer or operator.
    fn is_ordinary(&self, action: Self::Action) -> bool;
}

type Story<M> = Vec<(<M as Model>::State, <M as Model>::Action)>;

/// The reachable states, walked in full, with each property checked on the way.
pub struct Graph<M: Model> {
    pub states: usize,
    pub depth: usize,
    /// A promise that some state violates.
    pub violated: Option<&'static str>,
    /// The path to the first state from which not all jobs can end.
    pub stuck: Option<Story<M>>,
}

/// Faster than the standard hasher in a build without optimisation. The number of states is
/// compared with that of Stateright, which has another hasher.
#[derive(Default)]
struct Mixer {
    mixed: u64,
    /// Up to eight bytes that are mixed together.
    bytes: u64,
    count: u32,
}

impl Mixer {
    fn mix(&mut self) {
        self.mixed = (self.mixed ^ self.bytes).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        (self.bytes, self.count) = (0, 0);
    }
}

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u8(*byte);
        }
    }

    fn write_u8(&mut self, byte: u8) {
        self.bytes = self.bytes << 8 | u64::from(byte);
        self.count += 1;
        if self.count == 8 {
            self.mix();
        }
    }

    fn write_isize(&mut self, discriminant: isize) {
        self.write_u8(discriminant as u8);
    }

    fn write_usize(&mut self, _: usize) {
        // The length of an array.
    }

    fn write_u64(&mut self, key: u64) {
        self.mixed = key;
    }

    fn finish(&self) -> u64 {
        (self.mixed ^ self.mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93)
    }
}

fn key(s: &impl Hash) -> u64 {
    let mut hasher = Mixer::default();
    s.hash(&mut hasher);
    hasher.write_u8(hasher.count as u8);
    hasher.mix();
    hasher.finish()
}

pub fn walk<M: Ends>(model: &M) -> Graph<M> {
    let mut found: HashMap<u64, u32, BuildHasherDefault<Mixer>> = HashMap::default();
    // For each state: whether all has ended, and the first state and action that led to it.
    let mut goal = Vec::new();
    let mut came_from: Vec<Option<(u32, M::Action)>> = Vec::new();
    let mut into: Vec<Vec<u32>> = Vec::new();
    let mut frontier: Vec<(u32, M::State)> = Vec::new();
    for state in model.init_states() {
        found.insert(key(&state), 0);
        goal.push(model.ended(&state));
        came_from.push(None);
        into.push(Vec::new());
        frontier.push((0, state));
    }
    let mut depth = 0;
    let mut violated = None;
    let properties = model.properties();
    let mut actions = Vec::new();
    while !frontier.is_empty() {
        depth += 1;
        let mut next = Vec::new();
        for (from, state) in frontier {
            actions.clear();
            model.actions(&state, &mut actions);
            for action in &actions {
                let Some(after) = model.next_state(&state, *action) else { continue };
                let number = goal.len() as u32;
                let to = *found.entry(key(&after)).or_insert(number);
                if to == number {
                    let broken = properties.iter().find(|it| !(it.condition)(model, &after));
                    violated = violated.or(broken.map(|it| it.name));
                    goal.push(model.ended(&after));
                    came_from.push(Some((from, *action)));
                    into.push(Vec::new());
                    next.push((to, after));
                }
                if model.is_ordinary(*action) {
                    into[to as usize].push(from);
                }
            }
        }
        frontier = next;
    }
    let states = goal.len();
    let stuck = stuck(goal, &into).map(|last| story(model, &came_from, last));
    Graph { states, depth, violated, stuck }
}

/// Walks backwards from the states in which all has ended; returns the first state that this does
/// not reach.
fn stuck(mut ends: Vec<bool>, into: &[Vec<u32>]) -> Option<u32> {
    let mut open: Vec<u32> = (0..ends.len() as u32).filter(|state| ends[*state as usize]).collect();
    while let Some(state) = open.pop() {
        for from in &into[state as usize] {
            if !std::mem::replace(&mut ends[*from as usize], true) {
                open.push(*from);
            }
        }
    }
    ends.iter().position(|ends| !ends).map(|state| state as u32)
}

/// Returns the steps to a state.
fn story<M: Ends>(model: &M, came_from: &[Option<(u32, M::Action)>], mut last: u32) -> Story<M> {
    let mut actions = Vec::new();
    while let Some((from, action)) = came_from[last as usize] {
        actions.push(action);
        last = from;
    }
    let mut states = model.init_states();
    let mut state = states.remove(0);
    let mut story = Vec::new();
    for action in actions.into_iter().rev() {
        if let Some(after) = model.next_state(&state, action) {
            story.push((std::mem::replace(&mut state, after), action));
        }
    }
    story
}
