//! Every page can be read and used by all: contrast, narrow screens, the keyboard alone, and a
//! refresh that moves nothing. Each check runs in the browser, on the rendered page.

use serde_json::Value;
use seriatim_web::Access;

use crate::browser::{local, pages, shop_in_every_state};
use crate::chromium::{Browser, TAB, browser};
use crate::size::size;
use crate::support::serve;

/// Returns every text that is seen with less contrast than WCAG 2 wants (AA: 4.5, or 3 for large
/// text), and how many were looked at. The browser itself resolves each colour.
const CONTRAST: &str = r#"
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = 1;
    const paint = canvas.getContext("2d", { willReadFrequently: true });
    const known = new Map();
    const rgba = (color) => {
      if (!known.has(color)) {
        paint.clearRect(0, 0, 1, 1);
        paint.fillStyle = color;
        paint.fillRect(0, 0, 1, 1);
        const [r, g, b, a] = paint.getImageData(0, 0, 1, 1).data;
        known.set(color, [r, g, b, a / 255]);
      }
      return known.get(color);
    };
    const over = (top, under) => {
      const a = top[3] + under[3] * (1 - top[3]);
      const mix = (n) => a && (top[n] * top[3] + under[n] * under[3] * (1 - top[3])) / a;
      return [mix(0), mix(1), mix(2), a];
    };
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const backdrop = (element) => {
      let color = [0, 0, 0, 0];
      for (let at = element; at; at = at.parentElement) {
        color = over(color, rgba(getComputedStyle(at).backgroundColor));
        if (color[3] >= 0.999) return color;
      }
      return over(color, dark ? [18, 18, 18, 1] : [255, 255, 255, 1]);
    };
    const light = ([r, g, b]) => {
      const part = (c) => (c /= 255, c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
      return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
    };
    const opacity = (element) => {
      let all = 1;
      for (let at = element; at; at = at.parentElement) all *= Number(getComputedStyle(at).opacity);
      return all;
    };
    const seen = (element) => element.checkVisibility({ visibilityProperty: true })
      && element.getClientRects().length > 0 && getComputedStyle(element).clipPath === "none";
    const poor = [];
    let looked = 0;
    const look = (element, style, text) => {
      if (element.closest(":disabled") || !seen(element)) return;
      looked += 1;
      const own = rgba(element instanceof SVGElement ? style.fill : style.color);
      const back = backdrop(element);
      const front = over([own[0], own[1], own[2], own[3] * opacity(element)], back);
      const [a, b] = [light(front), light(back)].sort((x, y) => y - x);
      const ratio = (a + 0.05) / (b + 0.05);
      const size = parseFloat(style.fontSize);
      const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
      if (ratio < (large ? 3 : 4.5)) {
        poor.push(`${ratio.toFixed(2)} ${element.tagName}.${element.getAttribute("class")}: ${text.slice(0, 40)}`);
      }
    };
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) {
      const text = walk.currentNode.nodeValue.trim();
      const element = walk.currentNode.parentElement;
      if (text && !element.closest("script, style, option, title")) {
        look(element, getComputedStyle(element), text);
      }
    }
    for (const element of document.querySelectorAll("input, select, td")) {
      if (element.value) look(element, getComputedStyle(element), element.value);
      for (const pseudo of ["::placeholder", "::before"]) {
        const style = getComputedStyle(element, pseudo);
        const text = pseudo === "::before" ? style.content : element.placeholder;
        if (text && text !== "none" && text !== "normal") look(element, style, text);
      }
    }
    return { poor, looked };
"#;

impl Browser {
    async fn has_contrast(&self, of: &str) {
        let found = self.script(CONTRAST).await;
        assert!(found["looked"].as_u64().unwrap() > 20, "{of}: {found}");
        assert_eq!(found["poor"], Value::Array(Vec::new()), "{of}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_text_has_contrast_in_both_themes() {
    let shop = shop_in_every_state().await;
    shop.enqueue("odrers", "customer-1", "fine", "ship").await;
    let page = serve(shop.pool(), local(Access::Admin)).await;
    // A plain run looks at each page in one of the themes.
    let themes = size(2, 1);
    for (theme, dark) in [("light", false), ("dark", true)] {
        let Some(browser) = browser(dark, 1280).await else { return };
        let is_dark = browser.script("return matchMedia('(prefers-color-scheme: dark)').matches");
        assert_eq!(is_dark.await, dark, "the theme is that which was asked for");
        let others = if dark { themes - 1 } else { 0 };
        for (name, path) in pages(&shop).into_iter().skip(others).step_by(themes) {
            browser.open(page, &path).await;
            browser.has_contrast(&format!("{name}, {theme}")).await;
            browser.press("j").await;
            browser.has_contrast(&format!("{name}, {theme}, a row selected")).await;
        }
        browser.open(page, "/queue?name=orders&state=halted").await;
        browser.press("r").await;
        browser.reads("#ask-preview", "is queued again").await;
        browser.has_contrast(&format!("the question, {theme}")).await;
        browser.script("document.getElementById('ask').close()").await;
        browser.script("tell({ message: 'Done.', undo: {} })").await;
        browser.has_contrast(&format!("what was done, {theme}")).await;
        browser.press("?").await;
        browser.has_contrast(&format!("help, {theme}")).await;
        browser.open(page, "/failed").await;
        browser.script("document.querySelector('[data-bulk] button').click()").await;
        browser.script("document.getElementById('ask-preview').classList.add('refused')").await;
        browser.has_contrast(&format!("a refusal, {theme}")).await;
        browser.close().await;
    }
    shop.close().await;
}

/// The check itself fails on a text that is too pale.
#[tokio::test(flavor = "multi_thread")]
async fn the_check_of_contrast_sees_pale_text() {
    let Some(browser) = browser(false, 1280).await else { return };
    let shop = crate::support::Shop::open(0).await;
    let page = serve(shop.pool(), local(Access::Viewer)).await;
    browser.open(page, "/").await;
    for (style, poor) in [
        ("color: #777", 1), // 4.48
        ("color: #767676", 0),
        ("color: #8a8a8a; font-size: 24px", 0),
        ("color: #000; opacity: .4", 1),
        ("color: #fff; background: color-mix(in srgb, #000 30%, transparent)", 1),
    ] {
        let script = "const h1 = document.querySelector('h1'); h1.removeAttribute('style'); \
                      h1.style.fontSize = '16px'; h1.style.fontWeight = 400; \
                      for (const rule of arguments[0].split(';')) { \
                        const [name, value] = rule.split(':'); \
                        h1.style.setProperty(name.trim(), value.trim()); }";
        browser.client.execute(script, vec![Value::from(style)]).await.unwrap();
        let found = browser.script(CONTRAST).await;
        assert_eq!(found["poor"].as_array().unwrap().len(), poor, "{style}: {found}");
    }
    browser.close().await;
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_telephone_scrolls_no_page_sideways() {
    let Some(browser) = browser(false, 360).await else { return };
    let shop = shop_in_every_state().await;
    shop.enqueue("odrers", "customer-1", "fine", "ship").await;
    let page = serve(shop.pool(), local(Access::Admin)).await;
    for (name, path) in pages(&shop) {
        browser.open(page, &path).await;
        assert_eq!(browser.script("return window.innerWidth").await, 360, "{name}");
        let wider = "return [...document.querySelectorAll('body *')] \
            .filter((at) => at.checkVisibility() && !at.closest('.picture, .skip, dialog') \
              && at.getBoundingClientRect().right > innerWidth + 0.5) \
            .map((at) => `${at.tagName}.${at.className} ${at.getBoundingClientRect().right}`)";
        let scrolls = browser.script("return document.documentElement.scrollWidth").await;
        assert_eq!(scrolls, 360, "{name}: {}", browser.script(wider).await);
    }
    browser.close().await;
    shop.close().await;
}

/// Every control is reached by Tab, in the order shown, and shows its focus.
#[tokio::test(flavor = "multi_thread")]
async fn all_is_reached_by_tab_and_shows_its_focus() {
    let Some(browser) = browser(false, 1280).await else { return };
    let shop = shop_in_every_state().await;
    shop.enqueue("odrers", "customer-1", "fine", "ship").await;
    let page = serve(shop.pool(), local(Access::Admin)).await;
    // Each second one in a plain run: a queue, groups that are stopped, dead letters to pick.
    for (name, path) in pages(&shop).into_iter().skip(size(1, 0)).step_by(size(2, 1)) {
        browser.open(page, &path).await;
        let listen = "toggleLive(); window.reached = []; window.unseen = []; \
            const can = 'a[href], button, input, select, textarea, [tabindex=\"0\"]'; \
            window.targets = [...document.querySelectorAll(can)] \
              .filter((at) => (at.checkVisibility() || at.closest('.lane')) && !at.disabled && at.type !== 'hidden'); \
            document.addEventListener('focusin', (event) => { \
              const at = event.target; const style = getComputedStyle(at); \
              if (!reached.includes(at)) reached.push(at); \
              const box = at.getBoundingClientRect(); \
              if (style.outlineStyle === 'none' || parseFloat(style.outlineWidth) < 1 \
                  || box.right <= 0 || box.width === 0) unseen.push(at.outerHTML.slice(0, 90)); }); \
            document.activeElement.blur(); return targets.length";
        let wanted = browser.script(listen).await.as_u64().unwrap();
        let tabs = TAB.repeat(usize::try_from(wanted).unwrap() + 2);
        browser.press(&tabs).await;
        let missed = "return targets.filter((at) => !reached.includes(at)) \
            .map((at) => at.outerHTML.slice(0, 120))";
        let none = Value::Array(Vec::new());
        assert_eq!(browser.script(missed).await, none, "{name}: of {wanted}");
        assert_eq!(browser.script("return unseen").await, none, "{name}");
        let order = "return reached.every((at, n) => n === 0 \
            || reached[n - 1].compareDocumentPosition(at) & Node.DOCUMENT_POSITION_FOLLOWING)";
        assert_eq!(browser.script(order).await, true, "{name}: in order");
        browser.script("if (live.getAttribute('aria-pressed') !== 'true') toggleLive()").await;
    }
    browser.close().await;
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refresh_leaves_every_row_where_it_is() {
    let shop = shop_in_every_state().await;
    shop.enqueue("odrers", "customer-1", "fine", "ship").await;
    let page = serve(shop.pool(), local(Access::Admin)).await;
    for width in size(&[1280][..], &[1280, 360][..]) {
        let Some(browser) = browser(false, *width).await else { return };
        for (name, path) in pages(&shop) {
            browser.open(page, &path).await;
            browser.press("j").await;
            browser.script("scrollTo(0, 40)").await;
            let places = "return [...document.querySelectorAll('[data-row], h1, h2, form')] \
                .map((at) => { const box = at.getBoundingClientRect(); \
                  return [box.x, box.y, box.width, box.height].map(Math.round).join(' '); })";
            let before = browser.script(places).await;
            assert!(!before.as_array().unwrap().is_empty());
            browser.script("window.refreshes = 0; main.addEventListener('refreshed', () => { refreshes += 1; }); return refresh()").await;
            assert!(browser.script("return refreshes").await.as_u64().unwrap() >= 1, "{name}");
            assert_eq!(browser.script(places).await, before, "{name} at {width}");
        }
        browser.close().await;
    }
    shop.close().await;
}
