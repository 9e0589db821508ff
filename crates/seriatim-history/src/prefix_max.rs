//! The greatest value of any prefix of a row of places, while values are added (a Fenwick tree).

#[derive(Debug)]
pub(crate) struct PrefixMax<T> {
    tree: Vec<Option<T>>,
}

impl<T: Copy + Ord> PrefixMax<T> {
    pub(crate) fn new(places: usize) -> Self {
        Self { tree: vec![None; places + 1] }
    }

    /// Adds a value at a place, from 0.
    pub(crate) fn add(&mut self, place: usize, value: T) {
        let mut at = place + 1;
        while at < self.tree.len() {
            self.tree[at] = self.tree[at].max(Some(value));
            at += at & at.wrapping_neg();
        }
    }

    /// Returns the greatest value of the first `places` places.
    pub(crate) fn of_first(&self, places: usize) -> Option<T> {
        let mut at = places.min(self.tree.len() - 1);
        let mut most = None;
        while at > 0 {
            most = most.max(self.tree[at]);
            at -= at & at.wrapping_neg();
        }
        most
    }
}
