package main

// This file reads whom a connection trusts, and what it shows of itself.

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
)

// tlsFiles names files with PEM in them. An empty name: there is none.
type tlsFiles struct{ authorities, certificate, key string }

// config reads the files. It is nil if there are none.
func (f tlsFiles) config() (*tls.Config, error) {
	switch {
	case f == tlsFiles{}:
		return nil, nil
	case (f.certificate == "") != (f.key == ""):
		return nil, errors.New("-cert and -key need each other; see -h")
	}
	config := new(tls.Config)
	if f.authorities != "" {
		var err error
		if config.RootCAs, err = readAuthorities(f.authorities); err != nil {
			return nil, fmt.Errorf("-ca: %w", err)
		}
	}
	if f.certificate != "" {
		pair, err := tls.LoadX509KeyPair(f.certificate, f.key)
		if err != nil {
			return nil, fmt.Errorf("-cert, -key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// readAuthorities reads all certificates of a file. It refuses one that is malformed, which
// AppendCertsFromPEM passes over: the authority that is meant may be that one.
func readAuthorities(name string) (*x509.CertPool, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	pool, found := x509.NewCertPool(), 0
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		found++
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: certificate %d: %w", name, found, err)
		}
		pool.AddCert(certificate)
	}
	if found == 0 {
		return nil, fmt.Errorf("%s: no certificate as PEM", name)
	}
	return pool, nil
}
