//! `short-functions`: a function is seen whole, on one screen.
//!
//! Rust is parsed. C and Python go by layout: a C function ends at a `}` in the first column, a
//! Python function at the next line that is indented no deeper than its `def`.

use crate::tidy::finding::Finding;
use crate::tidy::source::{File, Kind};
use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// From the signature to the closing brace; comments above it do not count.
const LINES_MAX: usize = 70;

struct Function {
    name: String,
    first: usize,
    last: usize,
}

pub(in crate::tidy) fn check(file: &File) -> Vec<Finding> {
    let functions = match file.kind {
        Kind::Rust => rust_functions(file),
        Kind::C => c_functions(file),
        Kind::Python => python_functions(file),
        _ => Vec::new(),
    };
    functions.iter().filter_map(|function| judge(file, function)).collect()
}

fn judge(file: &File, function: &Function) -> Option<Finding> {
    let lines = function.last - function.first + 1;
    let what = || format!("{} has {lines} lines, {LINES_MAX} at most: split it", function.name);
    (lines > LINES_MAX).then(|| file.finding(function.first, what()))
}

fn rust_functions(file: &File) -> Vec<Function> {
    let mut found = Functions(Vec::new());
    if let Some(rust) = file.rust() {
        found.visit_file(&rust.syntax);
    }
    found.0
}

struct Functions(Vec<Function>);

impl Functions {
    fn add(&mut self, signature: &syn::Signature, end: Span) {
        let first = signature.span().start().line;
        self.0.push(Function { name: signature.ident.to_string(), first, last: end.end().line });
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.add(&item.sig, item.block.span());
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.add(&item.sig, item.block.span());
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(body) = &item.default {
            self.add(&item.sig, body.span());
        }
        visit::visit_trait_item_fn(self, item);
    }
}

fn c_functions(file: &File) -> Vec<Function> {
    let mut functions = Vec::new();
    let mut signature = None;
    for (number, line) in file.lines() {
        match line.chars().next() {
            Some('}') => {
                let started: Option<(usize, String)> = signature.take();
                functions.extend(started.map(|(first, name)| Function {
                    name,
                    first,
                    last: number,
                }));
            }
            Some(first) if first.is_alphabetic() || first == '_' => {
                let name =
                    line.split_once('(').and_then(|(before, _)| before.split(BOUNDS).next_back());
                signature = name.map(|name| (number, name.to_owned())).or(signature);
            }
            _ => {}
        }
    }
    functions
}

const BOUNDS: [char; 2] = [' ', '*'];

fn python_functions(file: &File) -> Vec<Function> {
    let lines: Vec<(usize, &str)> = file.lines().filter(|(_, l)| !l.trim().is_empty()).collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let function = |(index, (first, line)): (usize, &(usize, &str))| {
        let code = line.trim_start();
        let rest = code.strip_prefix("async ").unwrap_or(code).strip_prefix("def ")?;
        // A signature over several lines closes at the depth of its `def`.
        let is_inside =
            |l: &&(usize, &str)| indent(l.1) > indent(line) || l.1.trim().starts_with(')');
        let last = lines[index + 1..].iter().take_while(is_inside).last().map_or(*first, |l| l.0);
        let name = rest.split('(').next().unwrap_or(rest).to_owned();
        Some(Function { name, first: *first, last })
    };
    lines.iter().enumerate().filter_map(function).collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::assert_file;
    use super::check;

    fn body(lines: usize) -> String {
        "    a();\n".repeat(lines)
    }

    #[test]
    fn long_rust_functions_are_found() {
        let (fits, long) = (body(68), body(69));
        for (before, after) in [
            ("/// Doc.\n#[inline]\nfn f() {\n", "}\n"),
            ("impl A {\n\npub fn f() {\n", "}\n}\n"),
            ("trait A {\n\nfn f() {\n", "}\n}\n"),
            ("mod tests {\n\nfn f() {\n", "}\n}\n"),
        ] {
            assert_file(check, "a.rs", &format!("{before}{fits}{after}"), &[]);
            let found = [(3, "f has 71 lines, 70 at most")];
            assert_file(check, "a.rs", &format!("{before}{long}{after}"), &found);
        }
        assert_file(check, "a.rs", "trait A { fn f(); }\n", &[]);
    }

    #[test]
    fn long_c_functions_are_found() {
        let before = "struct a {\n    int b;\n};\n\nstatic int *f(void)\n{\n";
        assert_file(check, "a.c", &format!("{before}{}}}\n", body(67)), &[]);
        assert_file(check, "a.c", &format!("{before}{}}}\n", body(68)), &[(5, "f has 71 lines")]);
        assert_file(check, "a.c", &format!("int a[] = {{\n{}}};\n", body(99)), &[]);
    }

    #[test]
    fn long_python_functions_are_found() {
        let before = "import a\n\ndef f(\n    b,\n):\n";
        assert_file(check, "a.py", &format!("{before}{}\na()\n", body(67)), &[]);
        let found = [(3, "f has 71 lines")];
        assert_file(check, "a.py", &format!("{before}\n{}\na()\n", body(67)), &found);
    }
}
