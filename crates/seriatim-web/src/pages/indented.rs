//! JSON over several lines.

/// Bounds the levels that are indented, so that deep JSON grows by a factor only.
const LEVELS: usize = 32;

/// Returns JSON over several lines. Its numbers and strings are copied: a parser would round
/// numbers.
pub(crate) fn indented(json: &str) -> String {
    let mut lines = String::with_capacity(2 * json.len());
    let line = |lines: &mut String, depth: usize| {
        lines.push('\n');
        lines.extend(std::iter::repeat_n("  ", depth.min(LEVELS)));
    };
    let (mut depth, mut quoted, mut escaped, mut opened) = (0_usize, false, false, false);
    for c in json.chars() {
        if quoted {
            quoted = escaped || c != '"';
            escaped = !escaped && c == '\\';
            lines.push(c);
            continue;
        }
        if c.is_ascii_whitespace() {
            continue;
        }
        let closes = matches!(c, ']' | '}');
        if closes {
            depth = depth.saturating_sub(1);
        }
        if opened != closes {
            line(&mut lines, depth);
        }
        opened = matches!(c, '[' | '{');
        lines.push(c);
        match c {
            '[' | '{' => depth += 1,
            ',' => line(&mut lines, depth),
            ':' => lines.push(' '),
            '"' => quoted = true,
            _ => {}
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_indented_as_serde_does_it() {
        let long = "[".repeat(LEVELS) + "1" + &"]".repeat(LEVELS);
        let texts = [
            "null",
            "[]",
            "{ }",
            r#"{"a": [], "b": {}, "c": [[1], {"d": null}, -1.5]}"#,
            r#"["\\", "\"", "[{,:}]", "\\\"]", {"\"}{": ""}]"#,
            &long,
        ];
        for text in texts {
            let value: serde_json::Value = serde_json::from_str(text).unwrap();
            assert_eq!(indented(text), serde_json::to_string_pretty(&value).unwrap(), "{text}");
        }
        let digits = "12345678901234567890123.4500";
        assert_eq!(indented(&format!("[{digits}]")), format!("[\n  {digits}\n]"));
        let deep = "[".repeat(5_000) + &"]".repeat(5_000);
        assert!(indented(&deep).len() < 10_000 * (2 * LEVELS + 2));
    }
}
