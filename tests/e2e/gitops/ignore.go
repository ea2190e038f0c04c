package main

import (
	"encoding/json"
	"fmt"

	"github.com/argoproj/gitops-engine/pkg/utils/kube/scheme"
	"github.com/itchyny/gojq"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// ignored is what ignoreDifferences of an Application does. The engine leaves that to Argo CD's application controller, whose module is
// several times this program; so paths are deleted here with the jq library that it uses, and the merge is a strategic one as there.
type ignored []*gojq.Code

func newIgnored(paths []string) (ignored, error) {
	var deletions ignored
	for _, path := range paths {
		query, err := gojq.Parse(fmt.Sprintf("del(%s)", path))
		if err != nil {
			return nil, fmt.Errorf("--ignore-jq %q: %w", path, err)
		}
		code, err := gojq.Compile(query)
		if err != nil {
			return nil, fmt.Errorf("--ignore-jq %q: %w", path, err)
		}
		deletions = append(deletions, code)
	}
	return deletions, nil
}

// without gives copies of both that lack what is ignored.
func (g ignored) without(target, live *unstructured.Unstructured) (*unstructured.Unstructured, *unstructured.Unstructured, error) {
	if target == nil || live == nil {
		return target, live, nil
	}
	target, live = target.DeepCopy(), live.DeepCopy()
	for _, object := range []*unstructured.Unstructured{target, live} {
		if err := g.delete(object); err != nil {
			return nil, nil, err
		}
	}
	return target, live, nil
}

// keepLive is RespectIgnoreDifferences=true: the target with what is ignored as it is in the cluster.
func (g ignored) keepLive(target, live *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if target == nil || live == nil {
		return target, nil
	}
	targetWithout, liveWithout, err := g.without(target, live)
	if err != nil {
		return nil, err
	}
	versioned, err := scheme.Scheme.New(target.GroupVersionKind())
	if err != nil {
		return nil, err // a kind without a strategic merge; the tests apply none
	}
	patchMeta, err := strategicpatch.NewPatchMetaFromStruct(versioned)
	if err != nil {
		return nil, err
	}
	texts := make([][]byte, 3)
	for i, object := range []*unstructured.Unstructured{live, liveWithout, targetWithout} {
		if texts[i], err = json.Marshal(object); err != nil {
			return nil, err
		}
	}
	removed, err := strategicpatch.CreateThreeWayMergePatch(texts[0], texts[0], texts[1], patchMeta, true)
	if err != nil {
		return nil, err
	}
	merged, err := strategicpatch.StrategicMergePatch(texts[2], removed, versioned)
	if err != nil {
		return nil, err
	}
	kept := &unstructured.Unstructured{}
	return kept, kept.UnmarshalJSON(merged)
}

func (g ignored) delete(object *unstructured.Unstructured) error {
	for _, deletion := range g {
		text, err := json.Marshal(object)
		if err != nil {
			return err
		}
		var plain map[string]any // numbers as jq knows them
		if err := json.Unmarshal(text, &plain); err != nil {
			return err
		}
		result, _ := deletion.Run(plain).Next()
		if failed, is := result.(error); is {
			return failed
		}
		if text, err = json.Marshal(result); err != nil {
			return err
		}
		if err := object.UnmarshalJSON(text); err != nil {
			return err
		}
	}
	return nil
}
