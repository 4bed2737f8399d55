package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"strings"
)

// width is that of every picture, so that it fits into a README.
const width = 820

// style has the colours of Okabe and Ito, which everybody can tell apart: blue is this recorder, orange
// and hatched are the others. Paper is white, however the screen is.
const style = `
    text { font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1a1a1a;
      stroke: #fff; stroke-width: 4px; stroke-linejoin: round; paint-order: stroke }
    .head { font-size: 16px; font-weight: 600 }
    .group { font-weight: 600 }
    .note, .tick { font-size: 12px; fill: #555 }
    .paper { fill: #fff }
    .ours { fill: #0072b2; stroke: #0072b2 }
    .peer { fill: #e69f00; stroke: #9c5f00 }
    .wait { stroke-width: 1 }
    .ours.wait { fill: url(#ours) }
    .peer.wait { fill: url(#peer) }
    .ours-hatch { stroke: #0072b2 }
    .peer-hatch { stroke: #c77700 }
    .grid { stroke: #d4d4d4 }
    .axis { stroke: #777 }
    @media screen and (prefers-color-scheme: dark) {
      text { fill: #ececec; stroke: #15181c }
      .note, .tick { fill: #b4b4b4 }
      .paper { fill: #15181c }
      .ours { fill: #56b4e9; stroke: #56b4e9 }
      .peer { fill: #e69f00; stroke: #f5bf4f }
      .ours-hatch { stroke: #56b4e9 }
      .peer-hatch { stroke: #e69f00 }
      .grid { stroke: #3a3f46 }
      .axis { stroke: #8a8a8a }
    }
`

// patterns are the fill of waits, and of the others' bars: ours lean one way and theirs the other.
const patterns = `<defs>
    <pattern id="ours" width="6" height="6" patternUnits="userSpaceOnUse">
      <path class="ours-hatch" d="M0 0L6 6"/>
    </pattern>
    <pattern id="peer" width="6" height="6" patternUnits="userSpaceOnUse">
      <path class="peer-hatch" d="M0 6L6 0"/>
    </pattern>
  </defs>`

// A canvas is an SVG file that is being written. Its zero value is an empty one.
type canvas struct{ body bytes.Buffer }

// finish returns the file. Title and description are for those who cannot see it.
func (c *canvas) finish(height int, title, description string) []byte {
	var file bytes.Buffer
	fmt.Fprintf(&file, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d"`, width, height)
	fmt.Fprintf(&file, ` viewBox="0 0 %d %d"`, width, height)
	fmt.Fprintf(&file, " role=\"img\" aria-labelledby=\"title desc\">\n")
	fmt.Fprintf(&file, "  <title id=\"title\">%s</title>\n", escape(title))
	fmt.Fprintf(&file, "  <desc id=\"desc\">%s</desc>\n", escape(description))
	fmt.Fprintf(&file, "  <style>%s  </style>\n  %s\n", style, patterns)
	fmt.Fprintf(&file, "  <rect class=\"paper\" width=\"%d\" height=\"%d\"/>\n", width, height)
	file.Write(c.body.Bytes())
	file.WriteString("</svg>\n")
	return file.Bytes()
}

// text writes a line that begins at x.
func (c *canvas) text(class string, x, y float64, line string) {
	c.anchored(class, "start", x, y, line)
}

// anchored writes a line that begins, ends or has its middle at x.
func (c *canvas) anchored(class, anchor string, x, y float64, line string) {
	fmt.Fprintf(&c.body, `  <text class="%s" text-anchor="%s" x="%.1f" y="%.1f">`, class, anchor, x, y)
	c.body.WriteString(escape(line) + "</text>\n")
}

// rect draws nothing where there is no width.
func (c *canvas) rect(class string, x, y, width, height float64) {
	if width <= 0 {
		return
	}
	fmt.Fprintf(&c.body, `  <rect class="%s" x="%.1f" y="%.1f"`, class, x, y)
	fmt.Fprintf(&c.body, " width=\"%.1f\" height=\"%.1f\"/>\n", width, height)
}

func (c *canvas) line(class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(&c.body, "  <path class=%q d=\"M%.1f %.1fL%.1f %.1f\"/>\n", class, x1, y1, x2, y2)
}

// mark draws a disc for ours and a diamond for a peer.
func (c *canvas) mark(class string, x, y float64) {
	if class == "ours" {
		fmt.Fprintf(&c.body, "  <circle class=%q cx=\"%.1f\" cy=\"%.1f\" r=\"6\"/>\n", class, x, y)
		return
	}
	fmt.Fprintf(&c.body, "  <path class=%q d=\"M%.1f %.1fl7 7l-7 7l-7 -7z\"/>\n", class, x, y-7)
}

// tick draws a line of the grid, with what it stands for below, if anything.
func (c *canvas) tick(x, top, bottom float64, label string) {
	c.line("grid", x, top, x, bottom)
	if label != "" {
		c.anchored("tick", "middle", x, bottom+16, label)
	}
}

// class is how what belongs to this recorder is drawn, and what does not.
func class(ours bool) string {
	if ours {
		return "ours"
	}
	return "peer"
}

func escape(text string) string {
	var escaped strings.Builder
	xml.EscapeText(&escaped, []byte(text)) // to memory, which takes everything
	return escaped.String()
}
