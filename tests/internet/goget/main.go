// Goget fetches URLs with Go's own resolver and TLS: `goget ca.pem URL…`;
// with `-` in place of the file it trusts what the system trusts.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

func main() {
	var roots *x509.CertPool
	if os.Args[1] != "-" {
		pem, err := os.ReadFile(os.Args[1])
		if err != nil {
			panic(err)
		}
		roots = x509.NewCertPool()
		roots.AppendCertsFromPEM(pem)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	client := &http.Client{Transport: transport, Timeout: 30 * time.Second}
	for _, url := range os.Args[2:] {
		response, err := client.Get(url)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		body, _ := io.ReadAll(response.Body)
		if len(body) < 500 {
			fmt.Println(string(body))
		}
		fmt.Println(response.StatusCode, len(body), "bytes")
	}
}
