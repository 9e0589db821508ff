//! The graph of all reachable states. Everything ends: from every one of them.
//!
//! Stateright's `eventually` misses a run that goes round in a circle, and here many do: a worker
//! polls again, a lease is extended. So the graph is walked here. From every state, one in which
//! all has ended must be reachable by ordinary steps alone: no fault, no request and no producer
//! has to help. Then a fair run, which takes in the end each step that stays possible, ends every
//! job.

use std::hash::{Hash, Hasher};

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

/// Faster than the standard hasher. The number of states is
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

    fn finish(&self) -> u64 {
        (self.mixed ^ self.mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93)
    }
}

/// Returns the key of a state, which is not 0.
fn key(s: &impl Hash) -> u64 {
    let mut hasher = Mixer::default();
    s.hash(&mut hasher);
    hasher.write_u8(hasher.count as u8);
    hasher.mix();
    hasher.finish().max(1)
}

/// The numbers of states by their keys, in the order in which they were met: a map, but faster.
struct Numbers {
    /// A key is at its own place or after it. Free places have 0; at least half of all are free.
    places: Vec<(u64, u32)>,
    count: usize,
}

impl Numbers {
    fn new() -> Self {
        Self { places: vec![(0, 0); 1 << 10], count: 0 }
    }

    /// Returns where the key is, or where it is to be.
    fn place_of(&self, key: u64) -> usize {
        let last = self.places.len() - 1;
        let mut place = key as usize & last;
        while self.places[place].0 != key && self.places[place].0 != 0 {
            place = (place + 1) & last;
        }
        place
    }

    /// Returns the number of a key, and whether it is a new one.
    fn of(&mut self, key: u64) -> (u32, bool) {
        let place = self.place_of(key);
        if self.places[place].0 == key {
            return (self.places[place].1, false);
        }
        let number = self.count as u32;
        self.places[place] = (key, number);
        self.count += 1;
        if self.count * 2 > self.places.len() {
            self.grow();
        }
        (number, true)
    }

    fn grow(&mut self) {
        let larger = vec![(0, 0); self.places.len() * 2];
        for (key, number) in std::mem::replace(&mut self.places, larger) {
            if key != 0 {
                let place = self.place_of(key);
                self.places[place] = (key, number);
            }
        }
    }
}

/// A step from a state that was met to one that is perhaps new.
struct Arrival<M: Model> {
    from: u32,
    action: M::Action,
    to: u32,
    is_new: bool,
}

/// The states that were met: for each the first state and action that led to it.
struct Met<M: Model> {
    came_from: Vec<Option<(u32, M::Action)>>,
    depth: usize,
}

/// Visits the reachable states in the order of their depth, until `goes_on` says that it is enough.
fn visit<M: Told<State: Hash>>(
    model: &M,
    mut goes_on: impl FnMut(Arrival<M>, &M::State) -> bool,
) -> Met<M> {
    let mut numbers = Numbers::new();
    let mut met = Met { came_from: Vec::new(), depth: 0 };
    let mut frontier: Vec<(u32, M::State)> = Vec::new();
    for state in model.init_states() {
        frontier.push((numbers.of(key(&state)).0, state));
        met.came_from.push(None);
    }
    let mut actions = Vec::new();
    while !frontier.is_empty() {
        met.depth += 1;
        for (from, state) in std::mem::take(&mut frontier) {
            actions.clear();
            model.actions(&state, &mut actions);
            for action in &actions {
                let action = *action;
                let Some(after) = model.next_state(&state, action) else { continue };
                let (to, is_new) = numbers.of(key(&after));
                if is_new {
                    met.came_from.push(Some((from, action)));
                }
                if !goes_on(Arrival { from, action, to, is_new }, &after) {
                    return met;
                }
                if is_new {
                    frontier.push((to, after));
                }
            }
        }
    }
    met
}

/// Returns the shortest story that violates a promise.
pub fn shortest<M: Told<State: Hash>>(model: &M, promise: &'static str) -> Option<Story<M>> {
    let property = model.property(promise);
    let mut last = None;
    let met = visit(model, |arrival, after| {
        if arrival.is_new && !(property.condition)(model, after) {
            last = Some(arrival.to);
        }
        last.is_none()
    });
    last.map(|last| story(model, &met.came_from, last))
}

pub fn walk<M: Ends>(model: &M) -> Graph<M> {
    // For each state: whether all has ended, and from which states it is come to.
    let mut goal = Vec::new();
    let mut into: Vec<Vec<u32>> = Vec::new();
    let mut violated = None;
    let properties = model.properties();
    for state in model.init_states() {
        goal.push(model.ended(&state));
        into.push(Vec::new());
        let broken = properties.iter().find(|it| !(it.condition)(model, &state));
        violated = violated.or(broken.map(|it| it.name));
    }
    let met = visit(model, |Arrival { from, action, to, is_new }, after| {
        if is_new {
            let broken = properties.iter().find(|it| !(it.condition)(model, after));
            violated = violated.or(broken.map(|it| it.name));
            goal.push(model.ended(after));
            into.push(Vec::new());
        }
        if model.is_ordinary(action) {
            into[to as usize].push(from);
        }
        true
    });
    let states = goal.len();
    let stuck = stuck(goal, &into).map(|last| story(model, &met.came_from, last));
    Graph { states, depth: met.depth, violated, stuck }
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
fn story<M: Told>(model: &M, came_from: &[Option<(u32, M::Action)>], mut last: u32) -> Story<M> {
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
