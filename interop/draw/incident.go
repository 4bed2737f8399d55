package main

import (
	"fmt"
	"strings"
)

// An incident is what two clients made of it: the receiver takes the event, its answer is lost, and
// the second attempt is answered 429 with a Retry-After.
type incident struct {
	Command string
	Clients []client
}

// A client is how one of them went about it.
type client struct {
	Name     string
	Settings string
	Ours     bool
	Attempts []attempt
	Returned duration // since the first attempt
	Taken    int      // how often the receiver took the event
}

type attempt struct {
	Number   int
	At, Took duration
	Answer   string
}

// end is when the attempt was over.
func (a attempt) end() duration { return a.At + a.Took }

// Where the lanes are: names on the left, time from there on.
const (
	left       = 16
	laneStart  = 212
	zoomScale  = 175 // pixels a second
	zoomEnd    = 3   // seconds
	wholeScale = 1.44
	barHeight  = 16
)

func (in *incident) draw() []byte {
	var c canvas
	c.text("head", left, 28, "The answer is lost; the second attempt is answered 429 with Retry-After: 300")
	c.text("group", left, 60, "The first seconds")
	for second := range zoomEnd + 1 {
		c.tick(laneStart+float64(second)*zoomScale, 50, 186, fmt.Sprintf("%d s", second))
	}
	c.text("group", left, 236, "All of it, to scale")
	for minute := range 6 {
		c.tick(laneStart+float64(60*minute)*wholeScale, 226, 362, fmt.Sprintf("%d min", minute))
	}
	var description []string
	for i, client := range in.Clients {
		client.zoom(&c, 92+60*float64(i))
		client.whole(&c, 268+60*float64(i))
		description = append(description, client.story())
	}
	c.text("note", left, 404, "Measured in fake time, with a receiver that knows an event for five minutes:")
	c.text("note", left, 422, in.Command)
	return c.finish(438, "How long a lost answer holds the caller", strings.Join(description, " "))
}

// zoom draws the first seconds at y, and names each attempt and each wait.
func (cl client) zoom(c *canvas, y float64) {
	c.text("", left, y+12, cl.Name)
	c.text("note", left, y+28, cl.Settings)
	cl.bars(c, y, zoomScale)
	for i, a := range cl.Attempts {
		if a.At.seconds() > zoomEnd {
			break
		}
		c.text("", laneStart+a.At.seconds()*zoomScale+2, y-6, fmt.Sprintf("attempt %d: %s", a.Number, a.Answer))
		if i+1 < len(cl.Attempts) {
			wait := cl.Attempts[i+1].At - a.end()
			c.text("", laneStart+a.end().seconds()*zoomScale+2, y+barHeight+16, fmt.Sprintf("waits %v", wait))
		}
	}
	if cl.Returned.seconds() < zoomEnd {
		c.text("group", laneStart+cl.Returned.seconds()*zoomScale+14, y+13, "returns: the receiver has it")
	}
}

// whole draws all of it at y, and names what came of it.
func (cl client) whole(c *canvas, y float64) {
	c.text("", left, y+12, cl.Name)
	cl.bars(c, y, wholeScale)
	end := laneStart + cl.Returned.seconds()*wholeScale
	c.text("group", end+12, y+13, fmt.Sprintf("returns after %v", cl.Returned))
	c.text("", end+12, y+30, "event taken "+times(cl.Taken))
	last := cl.Attempts[len(cl.Attempts)-1]
	before := cl.Attempts[len(cl.Attempts)-2]
	if wait := last.At - before.end(); wait.seconds()*wholeScale > width/4 {
		c.text("", laneStart+before.end().seconds()*wholeScale+2, y-6, fmt.Sprintf("waits %v, as it is told", wait))
		c.anchored("", "end", end, y-6, fmt.Sprintf("attempt %d: %s", last.Number, last.Answer))
	}
}

// bars draws attempts, full, and the waits between them, hatched. What does not fit runs off the edge.
func (cl client) bars(c *canvas, y, scale float64) {
	at := func(d duration) float64 { return min(laneStart+d.seconds()*scale, width) }
	for i, a := range cl.Attempts {
		c.rect(class(cl.Ours), at(a.At), y, at(a.end())-at(a.At), barHeight)
		if i+1 < len(cl.Attempts) {
			next := cl.Attempts[i+1]
			c.rect(class(cl.Ours)+" wait", at(a.end()), y, at(next.At)-at(a.end()), barHeight)
		}
	}
	for _, a := range cl.Attempts {
		if a.Took == 0 && at(a.At) < width {
			c.mark(class(cl.Ours), at(a.At), y+barHeight/2)
		}
	}
}

// story tells in words what the picture shows.
func (cl client) story() string {
	var parts []string
	for i, a := range cl.Attempts {
		if i > 0 {
			parts = append(parts, fmt.Sprintf("waits %v", a.At-cl.Attempts[i-1].end()))
		}
		parts = append(parts, fmt.Sprintf("attempt %d: %s", a.Number, a.Answer))
	}
	parts = append(parts, fmt.Sprintf("returns after %v, the event taken %s.", cl.Returned, times(cl.Taken)))
	return cl.Name + ": " + strings.Join(parts, "; ")
}

func times(n int) string {
	switch n {
	case 1:
		return "once"
	case 2:
		return "twice"
	default:
		return fmt.Sprintf("%d times", n)
	}
}
