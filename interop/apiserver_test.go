package interop

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// An apiServer serves as much of the Kubernetes API as a manager needs that watches ConfigMaps and
// records events: discovery of ConfigMaps, a list and a watch of them that never change, and the
// creation of events by either API.
type apiServer struct {
	*server
	configMaps []corev1.ConfigMap

	mu     sync.Mutex
	core   []corev1.Event
	events []eventsv1.Event
}

func newAPIServer(t testing.TB, configMaps ...corev1.ConfigMap) *apiServer {
	a := &apiServer{configMaps: configMaps}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, metav1.APIVersions{
			TypeMeta: metav1.TypeMeta{Kind: "APIVersions"},
			Versions: []string{"v1"},
		})
	})
	mux.HandleFunc("GET /apis", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}})
	})
	mux.HandleFunc("GET /api/v1", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, metav1.APIResourceList{
			TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
			GroupVersion: "v1",
			APIResources: []metav1.APIResource{{
				Name: "configmaps", SingularName: "configmap", Kind: "ConfigMap", Namespaced: true,
				Verbs: []string{"get", "list", "watch"},
			}},
		})
	})
	mux.HandleFunc("GET /api/v1/configmaps", a.listOrWatch)
	mux.HandleFunc("POST /api/v1/namespaces/{namespace}/events", func(w http.ResponseWriter, r *http.Request) {
		create(a, &a.core, w, r)
	})
	mux.HandleFunc("POST /apis/events.k8s.io/v1/namespaces/{namespace}/events", func(w http.ResponseWriter, r *http.Request) {
		create(a, &a.events, w, r)
	})
	a.server = serve(t, mux)
	return a
}

// config is that of a client of the API.
func (a *apiServer) config() *rest.Config {
	return &rest.Config{Host: a.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
}

func (a *apiServer) listOrWatch(w http.ResponseWriter, r *http.Request) {
	if r.FormValue("watch") != "true" {
		reply(w, http.StatusOK, corev1.ConfigMapList{
			TypeMeta: metav1.TypeMeta{Kind: "ConfigMapList", APIVersion: "v1"},
			ListMeta: metav1.ListMeta{ResourceVersion: "1"},
			Items:    a.configMaps,
		})
		return
	}
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	send := func(kind string, object corev1.ConfigMap) {
		object.TypeMeta = metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"}
		_ = encoder.Encode(map[string]any{"type": kind, "object": object})
	}
	if r.FormValue("sendInitialEvents") == "true" {
		for _, object := range a.configMaps {
			send("ADDED", object)
		}
		send("BOOKMARK", corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			ResourceVersion: "1",
			Annotations:     map[string]string{metav1.InitialEventsAnnotationKey: "true"},
		}})
	}
	w.(http.Flusher).Flush()
	<-r.Context().Done()
}

// create keeps an event and answers with it.
func create[T any](a *apiServer, kept *[]T, w http.ResponseWriter, r *http.Request) {
	var event T
	if err := json.NewDecoder(r.Body).Decode(&event); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	a.mu.Lock()
	*kept = append(*kept, event)
	a.mu.Unlock()
	reply(w, http.StatusCreated, event)
}

// recorded returns the events that were created by the old API and by the new one.
func (a *apiServer) recorded() ([]corev1.Event, []eventsv1.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.core[:len(a.core):len(a.core)], a.events[:len(a.events):len(a.events)]
}

func reply(w http.ResponseWriter, status int, object any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(object)
}

// someConfigMaps are named web-0, web-1 and so on.
func someConfigMaps(n int) []corev1.ConfigMap {
	var objects []corev1.ConfigMap
	for i := range n {
		object := configMap(fmt.Sprintf("web-%d", i), nil)
		object.ResourceVersion = "1"
		objects = append(objects, *object)
	}
	return objects
}
