// Outsiders verifies the notary's published data with the code of others only: the signed notes and trees of Go's checksum
// database (golang.org/x/mod/sumdb), and the proofs and checkpoints of transparency-dev. It shares no code with the notary.
//
// It reads one JSON object a line and answers each with one: {"ok": true, …} or {"ok": false, "error": "…"}.
package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/transparency-dev/formats/log"
	"github.com/transparency-dev/formats/proof"
	merkle "github.com/transparency-dev/merkle/proof"
	"github.com/transparency-dev/merkle/rfc6962"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// A question is one request to this program: an operation and its arguments.
type question struct {
	Do      string
	Key     string   // verifier key, or for "issue" the signer's
	Origin  string   // of a log that issues
	Leaf    string   // hex
	Leaves  []string // hex
	Receipt string
	Note    string
	Text    string // what a note should say
	Older   string // checkpoint
	Newer   string // checkpoint
	Tiles   string // folder with tile/
	Level   int    // of a tile, -1 for leaves
	Index   int64
	Width   int
}

type answer struct {
	OK       bool     `json:"ok"`
	Error    string   `json:"error,omitempty"`
	Size     uint64   `json:"size,omitempty"`
	Root     string   `json:"root,omitempty"`
	Path     string   `json:"path,omitempty"`
	Note     string   `json:"note,omitempty"`
	Receipts []string `json:"receipts,omitempty"`
}

func main() {
	lines := bufio.NewReader(os.Stdin)
	out := json.NewEncoder(os.Stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) == 0 && err != nil {
			return
		}
		var asked question
		found := answer{}
		decoder := json.NewDecoder(bytes.NewReader(line))
		decoder.DisallowUnknownFields()
		if err = decoder.Decode(&asked); err == nil {
			found, err = check(asked)
		}
		if err != nil {
			found = answer{Error: err.Error()}
		}
		found.OK = err == nil
		if out.Encode(found) != nil {
			os.Exit(1)
		}
	}
}

func check(asked question) (answer, error) {
	switch asked.Do {
	case "receipt":
		return receipt(asked)
	case "checkpoint":
		found, err := checkpoint(asked.Note, asked.Key)
		return answer{Size: found.Size, Root: hex.EncodeToString(found.Hash)}, err
	case "note":
		return answer{}, says(asked)
	case "consistency":
		return answer{}, consistency(asked)
	case "mirror":
		return answer{}, mirror(asked)
	case "path":
		return answer{Path: path(tlog.Tile{H: height, L: asked.Level, N: asked.Index, W: asked.Width})}, nil
	case "issue":
		return issue(asked)
	}
	return answer{}, fmt.Errorf("nobody knows how to do %q", asked.Do)
}

// opened returns the text of a note that the key has signed.
func opened(signed, key string) (string, string, error) {
	verifier, err := note.NewVerifier(key)
	if err != nil {
		return "", "", err
	}
	found, err := note.Open([]byte(signed), note.VerifierList(verifier))
	if err != nil {
		return "", "", err
	}
	return found.Text, verifier.Name(), nil
}

// checkpoint parses one twice: as transparency-dev does, and as the checksum database does, whose first line differs.
func checkpoint(signed, key string) (log.Checkpoint, error) {
	verifier, err := note.NewVerifier(key)
	if err != nil {
		return log.Checkpoint{}, err
	}
	found, rest, _, err := log.ParseCheckpoint([]byte(signed), verifier.Name(), verifier)
	if err != nil {
		return log.Checkpoint{}, err
	}
	if len(rest) > 0 {
		return log.Checkpoint{}, errors.New("it has extension lines")
	}
	text, name, err := opened(signed, key)
	if err != nil {
		return log.Checkpoint{}, err
	}
	tree, err := tlog.ParseTree([]byte(strings.Replace(text, name+"\n", "go.sum database tree\n", 1)))
	if err != nil {
		return log.Checkpoint{}, err
	}
	if uint64(tree.N) != found.Size || !bytes.Equal(tree.Hash[:], found.Hash) {
		return log.Checkpoint{}, errors.New("two readers of one checkpoint disagree")
	}
	return *found, nil
}

func receipt(asked question) (answer, error) {
	leaf, err := hex.DecodeString(asked.Leaf)
	if err != nil {
		return answer{}, err
	}
	var parsed proof.TLogProof
	if err := parsed.Unmarshal([]byte(asked.Receipt)); err != nil {
		return answer{}, err
	}
	signed, err := checkpoint(string(parsed.Checkpoint), asked.Key)
	if err != nil {
		return answer{}, err
	}
	var path tlog.RecordProof
	var nodes [][]byte
	for _, node := range parsed.Hashes {
		path = append(path, tlog.Hash(node))
		nodes = append(nodes, node[:])
	}
	byTlog := tlog.CheckRecord(path, int64(signed.Size), tlog.Hash(signed.Hash), int64(parsed.Index), tlog.RecordHash(leaf))
	byMerkle := merkle.VerifyInclusion(
		rfc6962.DefaultHasher, parsed.Index, signed.Size, rfc6962.DefaultHasher.HashLeaf(leaf), nodes, signed.Hash)
	if (byTlog == nil) != (byMerkle == nil) {
		return answer{}, fmt.Errorf("two verifiers of one proof disagree: %v, %v", byTlog, byMerkle)
	}
	return answer{Size: signed.Size, Root: hex.EncodeToString(signed.Hash)}, byTlog
}

// says checks that a note is signed, and has this text.
func says(asked question) error {
	text, _, err := opened(asked.Note, asked.Key)
	if err == nil && text != asked.Text {
		err = fmt.Errorf("it says %q", text)
	}
	return err
}

const height = 8

// path returns a tile's path in tlog-tiles: the checksum database puts the height first, and calls the leaves data.
func path(tile tlog.Tile) string {
	found := strings.Replace(tile.Path(), fmt.Sprintf("tile/%d/", height), "tile/", 1)
	return strings.Replace(found, "tile/data/", "tile/entries/", 1)
}

// folder reads tiles from files that are laid out as they are served.
type folder string

func (f folder) Height() int                     { return height }
func (f folder) SaveTiles([]tlog.Tile, [][]byte) {}
func (f folder) read(tile tlog.Tile) ([]byte, error) {
	return os.ReadFile(filepath.Join(string(f), path(tile)))
}

func (f folder) ReadTiles(tiles []tlog.Tile) (data [][]byte, err error) {
	for _, tile := range tiles {
		content, err := f.read(tile)
		if err != nil {
			return nil, err
		}
		data = append(data, content)
	}
	return data, nil
}

// trees returns two signed trees, the older first, and a reader for the hashes of the newer one, which verifies each against its root.
func (asked question) trees() (older, newer tlog.Tree, reader tlog.HashReader, err error) {
	for at, signed := range []string{asked.Older, asked.Newer} {
		found, err := checkpoint(signed, asked.Key)
		if err != nil {
			return older, newer, nil, err
		}
		*[]*tlog.Tree{&older, &newer}[at] = tlog.Tree{N: int64(found.Size), Hash: tlog.Hash(found.Hash)}
	}
	return older, newer, tlog.TileHashReader(newer, folder(asked.Tiles)), nil
}

func consistency(asked question) error {
	older, newer, reader, err := asked.trees()
	if err != nil {
		return err
	}
	for _, tree := range []tlog.Tree{older, newer} {
		root, err := tlog.TreeHash(tree.N, reader)
		if err != nil {
			return err
		}
		if root != tree.Hash {
			return fmt.Errorf("the tiles give another root at size %d", tree.N)
		}
	}
	path, err := tlog.ProveTree(newer.N, older.N, reader)
	if err != nil {
		return err
	}
	if err := tlog.CheckTree(path, newer.N, newer.Hash, older.N, older.Hash); err != nil {
		return err
	}
	var nodes [][]byte
	for _, node := range path {
		nodes = append(nodes, node[:])
	}
	return merkle.VerifyConsistency(
		rfc6962.DefaultHasher, uint64(older.N), uint64(newer.N), nodes, older.Hash[:], newer.Hash[:])
}

// mirror does a monitor's work: it reads and hashes every leaf of the signed tree, and compares it with the tiles of level 0.
func mirror(asked question) error {
	found, err := checkpoint(asked.Note, asked.Key)
	if err != nil {
		return err
	}
	tree := tlog.Tree{N: int64(found.Size), Hash: tlog.Hash(found.Hash)}
	reader := tlog.TileHashReader(tree, folder(asked.Tiles))
	for start := int64(0); start < tree.N; start += 1 << height {
		width := min(1<<height, tree.N-start)
		bundle, err := folder(asked.Tiles).read(tlog.Tile{H: height, L: -1, N: start >> height, W: int(width)})
		if err != nil {
			return err
		}
		var indexes []int64
		for n := start; n < start+width; n++ {
			indexes = append(indexes, tlog.StoredHashIndex(0, n))
		}
		hashes, err := reader.ReadHashes(indexes)
		if err != nil {
			return err
		}
		for at, hash := range hashes {
			if len(bundle) < 2 || len(bundle)-2 < int(binary.BigEndian.Uint16(bundle)) {
				return fmt.Errorf("the bundle from %d on is cut off", start)
			}
			end := 2 + int(binary.BigEndian.Uint16(bundle))
			if tlog.RecordHash(bundle[2:end]) != hash {
				return fmt.Errorf("entry %d is not the leaf of the tree", start+int64(at))
			}
			bundle = bundle[end:]
		}
		if len(bundle) > 0 {
			return fmt.Errorf("the bundle from %d on is too long", start)
		}
	}
	return nil
}

// issue makes a complete log of these leaves with the code of others, and returns what it publishes.
func issue(asked question) (answer, error) {
	signer, err := note.NewSigner(asked.Key)
	if err != nil {
		return answer{}, err
	}
	var stored []tlog.Hash
	reader := tlog.HashReaderFunc(func(indexes []int64) (found []tlog.Hash, err error) {
		for _, index := range indexes {
			found = append(found, stored[index])
		}
		return found, nil
	})
	for n, encoded := range asked.Leaves {
		leaf, err := hex.DecodeString(encoded)
		if err != nil {
			return answer{}, err
		}
		hashes, err := tlog.StoredHashes(int64(n), leaf, reader)
		if err != nil {
			return answer{}, err
		}
		stored = append(stored, hashes...)
	}
	size := int64(len(asked.Leaves))
	root, err := tlog.TreeHash(size, reader)
	if err != nil {
		return answer{}, err
	}
	text := log.Checkpoint{Origin: asked.Origin, Size: uint64(size), Hash: root[:]}.Marshal()
	signed, err := note.Sign(&note.Note{Text: string(text)}, signer)
	if err != nil {
		return answer{}, err
	}
	found := answer{Size: uint64(size), Root: hex.EncodeToString(root[:]), Note: string(signed)}
	for n := range size {
		path, err := tlog.ProveRecord(size, n, reader)
		if err != nil {
			return answer{}, err
		}
		made := proof.TLogProof{Index: uint64(n), Checkpoint: signed}
		for _, node := range path {
			made.Hashes = append(made.Hashes, node)
		}
		found.Receipts = append(found.Receipts, string(made.Marshal()))
	}
	return found, nil
}
