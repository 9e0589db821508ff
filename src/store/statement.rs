//! A statement: its text for a schema, compiled when a store first uses it.

use crate::store::names::Names;

/// The text of one statement, with `$n` for its n-th argument.
#[derive(Debug)]
pub(crate) struct Statement {
    compile: fn(&Names) -> String,
}

impl Statement {
    pub(crate) const fn new(compile: fn(&Names) -> String) -> Self {
        Self { compile }
    }

    /// Returns the statement for the schema of these names.
    pub(crate) fn compile(&self, names: &Names) -> String {
        (self.compile)(names)
    }
}

/// Declares the statements of a file as statics, each by the function that compiles it.
///
/// `ALL` is for the test that compiles every statement of the store.
macro_rules! statements {
    ($($(#[$doc:meta])* $name:ident = $compile:expr;)+) => {
        $(
            $(#[$doc])*
            static $name: $crate::store::statement::Statement =
                $crate::store::statement::Statement::new($compile);
        )+

        #[cfg(test)]
        pub(crate) const ALL: $crate::store::statement::InFile =
            (file!(), &[$((stringify!($name), &$name)),+]);
    };
}
pub(crate) use statements;

/// A file, and its statements by name.
#[cfg(test)]
pub(crate) type InFile = (&'static str, &'static [(&'static str, &'static Statement)]);
