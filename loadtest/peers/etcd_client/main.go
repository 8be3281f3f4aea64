// The etcd client of the etcd peer, with etcd's own Go client: a Python client would limit the rates that it could measure.
//
//	etcd-client HOST:PORT,...                    decides the requests on stdin, in frames, until stdin ends
//	etcd-client -load 10s [-in-flight 256] ...   generates transactions of the same shape, and prints their rate
//
// A frame in is u32 length, u64 number, then for each request its 32-byte transaction id, u16 count, and count 36-byte inputs. A frame
// out is u32 length, u64 number, then for each request u8 (0 committed, 1 rejected, 2 unknown), and after a 1 u16 count and count times
// the state and the 32-byte id of the transaction that consumed it. Integers are big-endian.
//
// One request is one etcd transaction: if none of its input keys was ever created, put the transaction's id under each of them; else
// read them. If all of them hold that same id, the request was committed before: sending it again is safe, also after a timeout.
// The requests of one submission are first tried in one transaction together.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	idBytes    = 32
	stateBytes = 36
	tries      = 5
	tryTimeout = 5 * time.Second

	committed, rejected, unknown = 0, 1, 2
)

type request struct {
	id     []byte
	inputs [][]byte
}

type conflict struct{ state, consumer []byte }

// Several connections, as in etcd's own benchmark: one goroutine at either end reads and writes each.
type pool struct {
	clients []*clientv3.Client
	turn    atomic.Uint64
}

func open(endpoints []string, conns int) *pool {
	p := &pool{}
	for at := range conns {
		// Each connection prefers another member, and uses the others when that one is down.
		turned := append(append([]string{}, endpoints[at%len(endpoints):]...), endpoints[:at%len(endpoints)]...)
		client, err := clientv3.New(clientv3.Config{Endpoints: turned, DialTimeout: tryTimeout})
		if err != nil {
			log.Fatalf("cannot connect to %v: %v", turned, err)
		}
		p.clients = append(p.clients, client)
	}
	return p
}

func (p *pool) decide(r request) (byte, []conflict) {
	unspent := make([]clientv3.Cmp, len(r.inputs))
	spend := make([]clientv3.Op, len(r.inputs))
	look := make([]clientv3.Op, len(r.inputs))
	for at, state := range r.inputs {
		key := string(state)
		unspent[at] = clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
		spend[at] = clientv3.OpPut(key, string(r.id))
		look[at] = clientv3.OpGet(key)
	}
	for range tries {
		client := p.clients[p.turn.Add(1)%uint64(len(p.clients))]
		ctx, cancel := context.WithTimeout(context.Background(), tryTimeout)
		answer, err := client.Txn(ctx).If(unspent...).Then(spend...).Else(look...).Commit()
		cancel()
		if err != nil {
			log.Printf("trying again: %v", err)
			continue
		}
		if answer.Succeeded {
			return committed, nil
		}
		conflicts := []conflict{}
		own := true
		for at, each := range answer.Responses {
			for _, kv := range each.GetResponseRange().Kvs {
				conflicts = append(conflicts, conflict{r.inputs[at], kv.Value})
				own = own && bytes.Equal(kv.Value, r.id)
			}
		}
		if own && len(conflicts) == len(r.inputs) {
			return committed, nil
		}
		return rejected, conflicts
	}
	return unknown, nil
}

// Commits all requests in one transaction. False: nothing is known, and each must be decided alone; that is safe, as in decide.
func (p *pool) commitAll(requests []request) bool {
	unspent, spend := []clientv3.Cmp{}, []clientv3.Op{}
	for _, r := range requests {
		for _, state := range r.inputs {
			unspent = append(unspent, clientv3.Compare(clientv3.CreateRevision(string(state)), "=", 0))
			spend = append(spend, clientv3.OpPut(string(state), string(r.id)))
		}
	}
	client := p.clients[p.turn.Add(1)%uint64(len(p.clients))]
	ctx, cancel := context.WithTimeout(context.Background(), tryTimeout)
	defer cancel()
	answer, err := client.Txn(ctx).If(unspent...).Then(spend...).Commit()
	if err != nil {
		log.Printf("one by one: %v", err)
	}
	return err == nil && answer.Succeeded
}

// Decides the requests of one submission: in one transaction, or all at once, or in their order if two of them want one state.
func (p *pool) decideAll(requests []request) []byte {
	if len(requests) > 1 && disjoint(requests) && p.commitAll(requests) {
		return bytes.Repeat([]byte{committed}, len(requests))
	}
	answers := make([][]byte, len(requests))
	one := func(at int) {
		outcome, conflicts := p.decide(requests[at])
		answer := []byte{outcome}
		if outcome == rejected {
			answer = binary.BigEndian.AppendUint16(answer, uint16(len(conflicts)))
			for _, each := range conflicts {
				answer = append(append(answer, each.state...), each.consumer...)
			}
		}
		answers[at] = answer
	}
	if disjoint(requests) {
		var all sync.WaitGroup
		for at := range requests {
			all.Go(func() { one(at) })
		}
		all.Wait()
	} else {
		for at := range requests {
			one(at)
		}
	}
	return bytes.Join(answers, nil)
}

func disjoint(requests []request) bool {
	seen := map[string]bool{}
	for _, r := range requests {
		for _, state := range r.inputs {
			if seen[string(state)] {
				return false
			}
			seen[string(state)] = true
		}
	}
	return true
}

func parse(body []byte) ([]request, error) {
	requests := []request{}
	for len(body) > 0 {
		if len(body) < idBytes+2 {
			return nil, errors.New("a frame ends inside a request")
		}
		r := request{id: body[:idBytes]}
		count := int(binary.BigEndian.Uint16(body[idBytes:]))
		body = body[idBytes+2:]
		if len(body) < count*stateBytes {
			return nil, errors.New("a frame ends inside a request's inputs")
		}
		for range count {
			r.inputs = append(r.inputs, body[:stateBytes])
			body = body[stateBytes:]
		}
		requests = append(requests, r)
	}
	return requests, nil
}

func serve(p *pool) error {
	in, out := bufio.NewReaderSize(os.Stdin, 1<<20), bufio.NewWriterSize(os.Stdout, 1<<20)
	answers := make(chan []byte, 4096)
	go func() {
		for answer := range answers {
			out.Write(answer)
			// Flush only when no other answer waits: answers that gathered meanwhile are sent together.
			if len(answers) == 0 {
				out.Flush()
			}
		}
	}()
	head := make([]byte, 12)
	for {
		if _, err := io.ReadFull(in, head); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		body := make([]byte, binary.BigEndian.Uint32(head)-8)
		if _, err := io.ReadFull(in, body); err != nil {
			return err
		}
		requests, err := parse(body)
		if err != nil {
			return err
		}
		number := bytes.Clone(head[4:])
		go func() {
			answer := p.decideAll(requests)
			frame := binary.BigEndian.AppendUint32(nil, uint32(8+len(answer)))
			answers <- append(append(frame, number...), answer...)
		}()
	}
}

func load(p *pool, took time.Duration, inFlight int, inputs int) {
	var done, failed atomic.Int64
	var all sync.WaitGroup
	began := time.Now()
	for range inFlight {
		all.Go(func() {
			for time.Since(began) < took {
				r := request{id: random(idBytes)}
				for range inputs {
					r.inputs = append(r.inputs, random(stateBytes))
				}
				if outcome, _ := p.decide(r); outcome == committed {
					done.Add(1)
				} else {
					failed.Add(1)
				}
			}
		})
	}
	all.Wait()
	fmt.Printf("{\"requests_per_s\": %.1f, \"failed\": %d}\n", float64(done.Load())/time.Since(began).Seconds(), failed.Load())
}

func random(size int) []byte {
	made := make([]byte, 0, size+8)
	for len(made) < size {
		made = binary.BigEndian.AppendUint64(made, rand.Uint64())
	}
	return made[:size]
}

func main() {
	took := flag.Duration("load", 0, "make transactions for so long instead of reading stdin")
	inFlight := flag.Int("in-flight", 256, "with -load: transactions under way at once")
	inputs := flag.Int("inputs", 4, "with -load: input states of a transaction")
	conns := flag.Int("conns", 8, "connections")
	flag.Parse()
	p := open(strings.Split(flag.Arg(0), ","), *conns)
	if *took > 0 {
		load(p, *took, *inFlight, *inputs)
	} else if err := serve(p); err != nil {
		log.Fatal(err)
	}
}
