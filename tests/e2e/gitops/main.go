// Command gitops applies manifests as the tools of platform teams do: through kubectl and helm themselves, and through the libraries
// that Flux and Argo CD apply with. It repeats that, as those tools do, and prints a JSON line for each object and round.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"reflect"
	"strings"
	"syscall"
	"time"

	"github.com/fluxcd/pkg/ssa/utils"
	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// A tool applies all objects once; what it did with each stands in the result, in the order of the objects.
type tool interface {
	apply(ctx context.Context, objects []*unstructured.Unstructured) ([]string, error)
}

type options struct {
	as        string
	every     time.Duration
	duration  time.Duration
	namespace string
	name      string
	flux      fluxOptions
	argo      argoOptions
	files     []string
}

const roundTimeout = 2 * time.Minute

// One line of the output. A generation of 0: the object was not there. The generation of a Deployment counts edits of its annotations too;
// a changed pod template is what restarts pods.
type line struct {
	Round            int    `json:"round"`
	Object           string `json:"object"`
	GenerationBefore int64  `json:"generationBefore"`
	GenerationAfter  int64  `json:"generationAfter"`
	TemplateChanged  bool   `json:"templateChanged"`
	Did              string `json:"did"`
	Error            string `json:"error,omitempty"`
}

type repeated []string

func (r *repeated) String() string { return strings.Join(*r, ",") }

func (r *repeated) Set(value string) error {
	*r = append(*r, value)
	return nil
}

func main() {
	klog.SetLogger(logr.Discard())
	log.SetLogger(logr.Discard())
	given, err := readOptions(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "gitops:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, given); err != nil {
		fmt.Fprintln(os.Stderr, "gitops:", err)
		os.Exit(1)
	}
}

func readOptions(arguments []string) (options, error) {
	var given options
	if len(arguments) == 0 || arguments[0] != "apply" {
		return given, errors.New("usage: gitops apply --as TOOL [--every 10s --for 5m] FILE...")
	}
	flags := flag.NewFlagSet("gitops apply", flag.ContinueOnError)
	flags.StringVar(&given.as, "as", "", "one of "+strings.Join(toolNames, ", "))
	flags.DurationVar(&given.every, "every", 10*time.Second, "from the start of one round to the start of the next")
	flags.DurationVar(&given.duration, "for", 0, "how long to go on; 0: one round")
	flags.StringVar(&given.namespace, "namespace", "default", "where objects go that name no namespace")
	flags.StringVar(&given.name, "name", "serving", "the Helm release, Kustomization or Application")
	flags.Var((*repeated)(&given.flux.ignoredPaths), "ignore-pointer", "Flux: a path of spec.ignore, for all objects; may be repeated")
	flags.StringVar(&given.argo.sync, "sync", syncOnDrift, "Argo CD: drift (self-heal: apply what differs) or always (as a new commit does)")
	flags.Var((*repeated)(&given.argo.ignoredPaths), "ignore-jq", "Argo CD: a jqPathExpression of ignoreDifferences; may be repeated")
	flags.BoolVar(&given.argo.respectIgnored, "respect-ignore-differences", false, "Argo CD: the sync option of that name")
	if err := flags.Parse(arguments[1:]); err != nil {
		return given, err
	}
	given.files = flags.Args()
	if len(given.files) == 0 {
		return given, errors.New("no FILE to apply")
	}
	return given, nil
}

func run(ctx context.Context, given options) error {
	loading := clientcmd.NewDefaultClientConfigLoadingRules() // $KUBECONFIG, as for kubectl and helm
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(loading, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 100, 200
	config.WarningHandler = rest.NoWarnings{}
	cluster, err := client.New(config, client.Options{})
	if err != nil {
		return err
	}
	chosen, err := newTool(given, config, cluster)
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	start := time.Now()
	for round := 1; ; round++ {
		objects, err := readObjects(given.files, given.namespace)
		if err != nil {
			return err
		}
		for _, done := range applyOnce(chosen, cluster, objects, round) {
			if err := out.Encode(done); err != nil {
				return err
			}
		}
		next := start.Add(time.Duration(round) * given.every)
		if next.Sub(start) > given.duration || given.duration == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil // ended by the caller, which is no failure
		case <-time.After(time.Until(next)):
		}
	}
}

// Read anew in each round, so that a caller can commit something else meanwhile.
func readObjects(files []string, namespace string) ([]*unstructured.Unstructured, error) {
	var all []*unstructured.Unstructured
	for _, name := range files {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		objects, err := utils.ReadObjects(file)
		file.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, objects...)
	}
	for _, object := range all {
		if object.GetNamespace() == "" {
			object.SetNamespace(namespace)
		}
	}
	return all, nil
}

// A round that began is done, also when the caller ends the program meanwhile.
func applyOnce(chosen tool, cluster client.Client, objects []*unstructured.Unstructured, round int) []line {
	ctx, cancel := context.WithTimeout(context.Background(), roundTimeout)
	defer cancel()
	before := make([]*unstructured.Unstructured, len(objects))
	for i, object := range objects {
		before[i] = read(ctx, cluster, object)
	}
	did, err := chosen.apply(ctx, objects)
	lines := make([]line, len(objects))
	for i, object := range objects {
		after := read(ctx, cluster, object)
		lines[i] = line{
			Round:            round,
			Object:           fmt.Sprintf("%s %s/%s", object.GetKind(), object.GetNamespace(), object.GetName()),
			GenerationBefore: before[i].GetGeneration(),
			GenerationAfter:  after.GetGeneration(),
			TemplateChanged:  !reflect.DeepEqual(template(before[i]), template(after)),
		}
		if i < len(did) {
			lines[i].Did = did[i]
		}
		if err != nil {
			lines[i].Error = err.Error()
		}
	}
	return lines
}

// read gives an empty object where there is none.
func read(ctx context.Context, cluster client.Client, object *unstructured.Unstructured) *unstructured.Unstructured {
	found := &unstructured.Unstructured{}
	found.SetGroupVersionKind(object.GroupVersionKind())
	if err := cluster.Get(ctx, client.ObjectKeyFromObject(object), found); err != nil {
		return &unstructured.Unstructured{}
	}
	return found
}

func template(object *unstructured.Unstructured) map[string]any {
	found, _, _ := unstructured.NestedMap(object.Object, "spec", "template")
	return found
}
