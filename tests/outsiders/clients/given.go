// The values that test_clients.py hands over on stdin. Both Go programs are built with this file.
package main

import (
	"fmt"
	"os"
)

type given struct {
	Party             string   `json:"party"`
	Signature         string   `json:"signature"`
	WrongSignature    string   `json:"wrong_signature"`
	Inputs            []string `json:"inputs"`
	References        []string `json:"references"`
	From              int64    `json:"from"`
	ContentHash       string   `json:"content_hash"`
	SecondContentHash string   `json:"second_content_hash"`
	Transaction       string   `json:"transaction"`
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
