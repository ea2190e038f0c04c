package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// kubectl of PATH, with `apply`.
type kubectl struct {
	namespace string
	flags     []string
}

func (k kubectl) apply(ctx context.Context, objects []*unstructured.Unstructured) ([]string, error) {
	manifest, err := toYAML(objects)
	if err != nil {
		return nil, err
	}
	arguments := append([]string{"apply", "--namespace", k.namespace, "--filename", "-"}, k.flags...)
	out, err := execute(ctx, manifest, "kubectl", arguments...)
	return strings.Split(out, "\n"), err
}

// helm of PATH, with `upgrade --install` and a chart that holds the manifests as they are.
type helm struct {
	namespace string
	release   string
}

func (h helm) apply(ctx context.Context, objects []*unstructured.Unstructured) ([]string, error) {
	chart, err := os.MkdirTemp("", "gitops-chart-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(chart)
	manifest, err := toYAML(objects)
	if err != nil {
		return nil, err
	}
	files := map[string]string{
		"Chart.yaml":             "apiVersion: v2\nname: " + h.release + "\nversion: 0.1.0\n",
		"templates/objects.yaml": strings.ReplaceAll(manifest, "{{", `{{ "{{" }}`),
	}
	for name, text := range files {
		path := filepath.Join(chart, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	_, err = execute(ctx, "", "helm", "upgrade", "--install", h.release, chart, "--namespace", h.namespace)
	did := make([]string, len(objects))
	for i := range did {
		did[i] = "upgraded"
	}
	return did, err
}

func toYAML(objects []*unstructured.Unstructured) (string, error) {
	var documents []string
	for _, object := range objects {
		text, err := yaml.Marshal(object.Object)
		if err != nil {
			return "", err
		}
		documents = append(documents, string(text))
	}
	return strings.Join(documents, "---\n"), nil
}

func execute(ctx context.Context, stdin, name string, arguments ...string) (string, error) {
	command := exec.CommandContext(ctx, name, arguments...)
	var out, complaints bytes.Buffer
	command.Stdin, command.Stdout, command.Stderr = strings.NewReader(stdin), &out, &complaints
	err := command.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%s: %s", name, strings.TrimSpace(complaints.String()))
	}
	return strings.TrimSpace(out.String()), err
}
